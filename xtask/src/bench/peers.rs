//! Other engines: what they can run, how they are installed, how their workers are started.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use stonechat_benches::protocol::ModelKind;

use super::models::Model;
use crate::{shell, venv};

/// Python package with llama.cpp's sources, as pip takes it.
pub(crate) const LLAMA_CPP: &str = "llama-cpp-python==0.3.36";
/// Option of pip that takes its sources instead of a wheel.
pub(crate) const LLAMA_CPP_SOURCE: &str = "--no-binary=llama-cpp-python";

const SCRIPT: &str = "xtask/assets/bench_peer.py";

/// Another engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Peer {
    /// Through llama-cpp-python, built for this processor
    #[value(name = "llama.cpp")]
    LlamaCpp,
    /// Through pywhispercpp, built for this processor
    #[value(name = "whisper.cpp")]
    WhisperCpp,
    /// Its wheel: CTranslate2 chooses its kernels at run time
    #[value(name = "faster-whisper")]
    FasterWhisper,
}

/// `ENGINE=PYTHON`: a Python that has the engine.
#[derive(Debug, Clone)]
pub(super) struct PeerPython {
    pub(super) peer: Peer,
    pub(super) python: PathBuf,
}

impl FromStr for PeerPython {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (peer, python) = text.split_once('=').ok_or("expected ENGINE=PYTHON")?;
        Ok(Self { peer: Peer::from_str(peer, false)?, python: python.into() })
    }
}

impl Peer {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::LlamaCpp => "llama.cpp",
            Self::WhisperCpp => "whisper.cpp",
            Self::FasterWhisper => "faster-whisper",
        }
    }

    /// Why it cannot run a model, `None` if it can.
    pub(super) fn refuses(self, model: &Model) -> Option<String> {
        let wanted = match self {
            Self::LlamaCpp => ModelKind::Text,
            Self::WhisperCpp | Self::FasterWhisper => ModelKind::Speech,
        };
        if model.kind != wanted {
            // Not worth a note: nobody would expect it.
            return Some(String::new());
        }
        let missing =
            |what: &str| Some(format!("{} needs {what}: {} has none", self.name(), model.name));
        match self {
            Self::LlamaCpp if model.source.extension().is_none_or(|e| e != "gguf") => {
                missing("a GGUF file")
            }
            Self::FasterWhisper if !model.source.join("model.bin").is_file() => {
                missing("a CTranslate2 folder")
            }
            _ => None,
        }
    }

    /// The file or folder that it reads.
    pub(super) fn path(self, model: &Model) -> &Path {
        match self {
            Self::LlamaCpp | Self::WhisperCpp => &model.path,
            Self::FasterWhisper => &model.source,
        }
    }

    /// A Python that has it: the given one, or that of an environment under the target folder, into which
    /// it is installed.
    pub(super) fn python(self, given: &[PeerPython]) -> Result<PathBuf> {
        if let Some(given) = given.iter().rev().find(|given| given.peer == self) {
            let python = &given.python;
            ensure!(python.is_file(), "--peer-python {}: no such file", python.display());
            return Ok(std::path::absolute(python)?);
        }
        let (environment, requirements): (&str, &[&str]) = match self {
            Self::LlamaCpp => {
                println!("llama.cpp is built from source: ten minutes, once");
                ("bench-llama-cpp", &[LLAMA_CPP_SOURCE, LLAMA_CPP])
            }
            Self::WhisperCpp => {
                ("bench-whisper-cpp", &["--no-binary=pywhispercpp", "pywhispercpp==1.5.1"])
            }
            Self::FasterWhisper => ("faster-whisper", &["faster-whisper==1.2.1"]),
        };
        let programs = venv::programs(environment, requirements, &[]);
        Ok(programs.with_context(|| format!("cannot install {}", self.name()))?.join("python"))
    }

    /// How its worker is started for `model`.
    pub(super) fn command(self, python: &Path, model: &Model, threads: usize) -> Command {
        let mut command = shell::program(python);
        command.arg(SCRIPT).arg(self.name()).args(["--threads", &threads.to_string()]);
        if self == Self::FasterWhisper {
            // Nearest to the weights of the others; faster-whisper has no f16 on CPUs.
            let kind = if model.is_quantized { "int8" } else { "float32" };
            command.args(["--compute-type", kind]);
        }
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_refuse_what_they_cannot_read() {
        let model = |kind, path: &str| Model {
            name: "m".to_owned(),
            kind,
            dtype: "f16".to_owned(),
            is_quantized: false,
            path: path.into(),
            source: path.into(),
        };
        let text = model(ModelKind::Text, "m.gguf");
        assert_eq!(Peer::LlamaCpp.refuses(&text), None);
        assert_eq!(Peer::WhisperCpp.refuses(&text), Some(String::new()));
        let folder = model(ModelKind::Text, "m");
        assert!(Peer::LlamaCpp.refuses(&folder).unwrap().contains("GGUF"));
        let speech = model(ModelKind::Speech, "m.gguf");
        assert_eq!(Peer::WhisperCpp.refuses(&speech), None);
        assert!(Peer::FasterWhisper.refuses(&speech).unwrap().contains("CTranslate2"));
    }
}
