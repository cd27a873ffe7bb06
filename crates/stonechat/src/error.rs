//! Errors of finding and downloading models.

use std::io;
use std::path::PathBuf;

/// Error of finding or downloading a model.
#[derive(Debug, thiserror::Error)]
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
        "no model: looked for test-data/models/*.gguf in the folders above and for the usual names in {}; \
         get one with `stonechat pull base` or `cargo xtask models base`, or name a file with --model",
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
    #[error("no model to pull is called `{name}`: expected one of {expected}, or user/repo[:file]")]
    UnknownName {
        /// Requested name.
        name: String,
        /// Known names.
        expected: String,
    },
    /// The hub cannot be reached or refuses.
    #[error("cannot download {what} from the Hugging Face hub: {reason}")]
    Hub {
        /// Repository and file.
        what: String,
        /// Message of the client, on one line.
        reason: String,
    },
    /// A repository without weights in a known format.
    #[error("the repository {repo} has no {expected}")]
    NoWeights {
        /// Repository.
        repo: String,
        /// Files that were expected.
        expected: &'static str,
    },
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
