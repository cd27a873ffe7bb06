//! Errors of the facade.

use std::any::Any;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Error of opening a model, of a request, or of finding or downloading models.
///
/// `Debug` writes the text of `Display` and the sources, which `fn main() -> Result<(), stonechat::Error>` prints.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Neither a path nor the name of an installed model.
    #[error(
        "no model `{name}`: no such file or folder, and none of that name in {}; {advice}",
        folder.display()
    )]
    ModelNotFound {
        /// Requested name.
        name: String,
        /// Folder that was searched.
        folder: PathBuf,
        /// Hint how to get it.
        advice: String,
    },
    /// No model is named and none is installed.
    #[error(
        "no speech model in {}: get one with `stonechat pull base` (`stonechat::pull` in a program), or name a file with --model",
        folder.display()
    )]
    NoModel {
        /// Folder that was searched.
        folder: PathBuf,
    },
    /// Neither `STONECHAT_MODELS` nor a home folder is set.
    #[error("no home folder is known: set STONECHAT_MODELS to a folder")]
    NoModelsFolder,
    /// Unknown name of a download.
    #[error(
        "no model to pull is called `{name}`: {}expected user/repo, user/repo:Q4_K_M, user/repo:file or a name of \
         `stonechat models --available`",
        suggestion.as_ref().map(|text| format!("{text} ")).unwrap_or_default()
    )]
    UnknownName {
        /// Requested name.
        name: String,
        /// Nearest known names, as a phrase.
        suggestion: Option<String>,
    },
    /// A name of a family of models whose architecture does not run here.
    #[error(
        "`{name}` does not run here yet: expected an architecture of {expected}, got that of {family}"
    )]
    UnsupportedFamily {
        /// Requested name.
        name: String,
        /// The family.
        family: &'static str,
        /// Architectures that run.
        expected: String,
    },
    /// An address that names nothing on the hub.
    #[error(
        "`{address}` is an address: expected user/repo or user/repo:file of the Hugging Face hub (of another hub with HF_ENDPOINT; \
         of its branch main), or the path of a file that is downloaded already"
    )]
    Address {
        /// The address.
        address: String,
    },
    /// The hub cannot be reached or refuses.
    #[error("cannot download {what} from the Hugging Face hub: {reason}")]
    Hub {
        /// Repository and file.
        what: String,
        /// Message of the client, on one line.
        reason: String,
    },
    /// A file of a repository whose name would lead out of the models folder.
    #[error("the repository {repo} has a file `{}`: expected a name without `..`, `\\`, `:` and a leading `/`", file.escape_debug())]
    UnsafeName {
        /// Repository.
        repo: String,
        /// Name of the file.
        file: String,
    },
    /// A repository without weights in a known format.
    #[error("the repository {repo} has no {expected}")]
    NoWeights {
        /// Repository.
        repo: String,
        /// Files that were expected.
        expected: &'static str,
    },
    /// A GGUF repository without weights of the requested type.
    #[error("the repository {repo} has no weights of type `{weights}`: expected one of {expected}")]
    NoSuchType {
        /// Repository.
        repo: String,
        /// Requested type.
        weights: String,
        /// Types of its files.
        expected: String,
    },
    /// The disk of the models folder is full.
    #[error(
        "no space left for {what} in {}: free some, or choose another folder with --models-dir; what arrived is kept",
        folder.display()
    )]
    DiskFull {
        /// Repository and file.
        what: String,
        /// Models folder.
        folder: PathBuf,
    },
    /// A model to remove that is not in the models folder.
    #[error("`{}` is not in the models folder: remove it by hand", path.display())]
    NotOwned {
        /// The model.
        path: PathBuf,
    },
    /// A model cannot be opened; `source` is the reason, mostly `Llm` or `Whisper`.
    #[error("cannot open `{}`: {source}", path.display())]
    Open {
        /// File or folder.
        path: PathBuf,
        /// Reason.
        source: Box<Self>,
    },
    /// A model file cannot be read.
    #[error(transparent)]
    Format(#[from] stonechat_formats::Error),
    /// A language model is damaged or of an unknown architecture, its chat template fails, or a request is invalid.
    #[error(transparent)]
    Llm(#[from] stonechat_llm::Error),
    /// A speech model is damaged, or an option does not fit it.
    #[error(transparent)]
    Whisper(#[from] stonechat_whisper::Error),
    /// A recording cannot be decoded.
    #[error(transparent)]
    Audio(#[from] stonechat_audio::Error),
    /// A device cannot be opened.
    #[error(transparent)]
    Device(#[from] stonechat_nn::Error),
    /// A GPU in a build without its feature.
    #[error("no GPU: this build has none (feature `{feature}`)")]
    NoGpuSupport {
        /// `cuda` or `wgpu`.
        feature: &'static str,
    },
    /// Layers that take more memory than a GPU has.
    #[error(
        "{gpu} has {:.2} GB of memory for it, and {asked} of {all} layers with their KV cache take {:.2} GB, {:.2} GB more: \
         {fitting} layers fit, the output counted as one; expected fewer layers on the GPU (`--gpu-layers auto`), a shorter \
         context or a smaller model",
        gigabytes(*available),
        gigabytes(*needed),
        gigabytes(needed - available)
    )]
    GpuMemory {
        /// The GPU.
        gpu: String,
        /// Layers on the GPU, the output counted as one.
        asked: usize,
        /// Layers of the model.
        all: usize,
        /// Bytes of the layers and of other models on the GPU.
        needed: u64,
        /// Free bytes of the GPU, or all of one that tells no more.
        available: u64,
        /// Layers that fit.
        fitting: usize,
    },
    /// The thread of an engine cannot be started.
    #[error("cannot start the thread of the model: {source}")]
    Thread {
        /// Cause.
        source: io::Error,
    },
    /// The device failed in a step, which ended all requests of the batch.
    #[error("the device failed in a step: {reason}")]
    Step {
        /// Message of the device.
        reason: String,
    },
    /// Work on a request, or on the batch that it was in, panicked. The model stays open for later requests.
    #[error("an internal error ended the request: {reason}")]
    Panicked {
        /// First line of the message.
        reason: String,
    },
    /// The result of a job was returned before.
    #[error("the result of the request was already returned")]
    ResultTaken,
    /// The thread of the engine ended: a panic, whose message is on standard error.
    #[error("the engine has stopped after an internal error")]
    EngineStopped,
    /// The SHA-256 of a download differs from that of the hub.
    #[error(
        "{file} was damaged on its way: expected SHA-256 {expected}, got {got}; it was removed, pull again"
    )]
    Checksum {
        /// File name.
        file: String,
        /// SHA-256 of the hub.
        expected: String,
        /// SHA-256 of the file.
        got: String,
    },
    /// The models folder cannot be used.
    #[error("cannot {action} `{}`: {source}", path.display())]
    Io {
        /// Verb: `read`, `write`, `create` or `remove`.
        action: &'static str,
        /// File or folder.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
}

impl Error {
    /// The error of a caught panic.
    pub(crate) fn panicked(payload: &(dyn Any + Send)) -> Self {
        Self::Panicked { reason: panic_reason(payload) }
    }

    /// Adds the path of a model to the reason why it cannot be opened, unless the message has it.
    pub(crate) fn of_model(self, path: &Path) -> Self {
        match self {
            Self::Llm(_) | Self::Whisper(_) => {
                Self::Open { path: path.to_owned(), source: Box::new(self) }
            }
            other => other,
        }
    }
}

/// First line of the message of a caught panic.
pub(crate) fn panic_reason(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("a panic");
    text.lines().next().unwrap_or_default().to_owned()
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.to_string();
        let mut source = std::error::Error::source(self);
        while let Some(error) = source {
            let reason = error.to_string();
            // Most messages have their source already.
            if !text.contains(&reason) {
                text = format!("{text}: {reason}");
            }
            source = error.source();
        }
        f.write_str(&text)
    }
}

fn gigabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::PathBuf;

    use super::Error;

    #[test]
    fn debug_is_what_main_should_print() {
        let (name, folder) = ("x".to_owned(), PathBuf::from("models"));
        let advice = "get it with `stonechat pull x`".to_owned();
        let error = Error::ModelNotFound { name, folder, advice };
        assert_eq!(format!("{error:?}"), error.to_string());
        assert!(format!("{error:?}").starts_with("no model `x`: no such file"));
        let source = io::Error::other("the disk is away");
        let error = Error::Io { action: "read", path: PathBuf::from("a.gguf"), source };
        let text = format!("{error:?}");
        assert_eq!(text.matches("the disk is away").count(), 1, "{text}");
    }
}
