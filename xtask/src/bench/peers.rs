//! Other engines in a run: what they can load and how their workers are started.

use std::path::Path;
use std::process::Command;

use stonechat_benches::protocol::ModelKind;

use super::models::Model;
use crate::peers::Peer;
use crate::shell;

const SCRIPT: &str = "xtask/assets/bench_peer.py";

/// Reason why `peer` cannot run `model`, `None` if it can.
pub(super) fn refusal(peer: Peer, model: &Model) -> Option<String> {
    let wanted = match peer {
        Peer::LlamaCpp => ModelKind::Text,
        Peer::WhisperCpp | Peer::FasterWhisper => ModelKind::Speech,
    };
    if model.kind != wanted {
        // Not worth a note: nobody would expect it.
        return Some(String::new());
    }
    let missing =
        |what: &str| Some(format!("{} needs {what}: {} has none", peer.name(), model.name));
    match peer {
        Peer::LlamaCpp if model.source.extension().is_none_or(|e| e != "gguf") => {
            missing("a GGUF file")
        }
        Peer::FasterWhisper if !model.source.join("model.bin").is_file() => {
            missing("a CTranslate2 folder")
        }
        _ => None,
    }
}

/// The file or folder that `peer` reads.
pub(super) fn model_path(peer: Peer, model: &Model) -> &Path {
    match peer {
        Peer::LlamaCpp | Peer::WhisperCpp => &model.path,
        Peer::FasterWhisper => &model.source,
    }
}

/// Command line of the worker of `peer` for `model`.
pub(super) fn command(peer: Peer, python: &Path, model: &Model, threads: usize) -> Command {
    let mut command = shell::program(python);
    command.arg(SCRIPT).arg(peer.name()).args(["--threads", &threads.to_string()]);
    if peer == Peer::FasterWhisper {
        // Nearest to the weights of the others; faster-whisper has no f16 on CPUs.
        let kind = if model.is_quantized { "int8" } else { "float32" };
        command.args(["--compute-type", kind]);
    }
    command
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
        assert_eq!(refusal(Peer::LlamaCpp, &text), None);
        assert_eq!(refusal(Peer::WhisperCpp, &text), Some(String::new()));
        let folder = model(ModelKind::Text, "m");
        assert!(refusal(Peer::LlamaCpp, &folder).unwrap().contains("GGUF"));
        let speech = model(ModelKind::Speech, "m.gguf");
        assert_eq!(refusal(Peer::WhisperCpp, &speech), None);
        assert!(refusal(Peer::FasterWhisper, &speech).unwrap().contains("CTranslate2"));
    }
}
