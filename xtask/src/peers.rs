//! Other engines: names, installation into Python environments, versions.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;

use crate::{shell, venv};

/// Python package with llama.cpp's sources, as pip takes it.
pub const LLAMA_CPP: &str = "llama-cpp-python==0.3.36";
/// Option of pip that takes its sources instead of a wheel.
pub const LLAMA_CPP_SOURCE: &str = "--no-binary=llama-cpp-python";

/// Another engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Peer {
    /// Through llama-cpp-python, built for this processor
    #[value(name = "llama.cpp")]
    LlamaCpp,
    /// Through pywhispercpp, built for this processor
    #[value(name = "whisper.cpp")]
    WhisperCpp,
    /// From its wheel: CTranslate2 chooses its kernels at run time
    #[value(name = "faster-whisper")]
    FasterWhisper,
}

/// `ENGINE=PYTHON`: a Python that has the engine.
#[derive(Debug, Clone)]
pub struct PeerPython {
    /// The engine.
    pub peer: Peer,
    /// Program of the Python.
    pub python: PathBuf,
}

impl FromStr for PeerPython {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (peer, python) = text.split_once('=').ok_or("expected ENGINE=PYTHON")?;
        Ok(Self { peer: Peer::from_str(peer, false)?, python: python.into() })
    }
}

impl Peer {
    /// Name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::LlamaCpp => "llama.cpp",
            Self::WhisperCpp => "whisper.cpp",
            Self::FasterWhisper => "faster-whisper",
        }
    }

    /// A Python that has the engine: the given one, or that of an environment under the target folder, into which
    /// it is installed.
    ///
    /// # Errors
    /// If the given Python is absent or the installation fails.
    pub fn python(self, given: &[PeerPython]) -> Result<PathBuf> {
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

    /// Package of the engine and its version in `python`, such as `faster-whisper 1.2.1`.
    ///
    /// # Errors
    /// If that Python does not have it.
    pub fn version(self, python: &std::path::Path) -> Result<String> {
        let package = match self {
            Self::LlamaCpp => "llama-cpp-python",
            Self::WhisperCpp => "pywhispercpp",
            Self::FasterWhisper => "faster-whisper",
        };
        let code = format!("import importlib.metadata as m; print(m.version({package:?}))");
        let version = shell::output(shell::program(python).args(["-c", &code]))?;
        Ok(format!("{package} {}", version.trim()))
    }
}
