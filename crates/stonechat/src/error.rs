//! Errors of finding and fetching models.

use std::io;
use std::path::PathBuf;

/// Why a model cannot be found or fetched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Neither a path nor the name of an installed model.
    #[error(
        "no model `{name}`: no such file or folder, and none of that name in {}; {advice}",
        folder.display()
    )]
    ModelNotFound {
        /// What was asked for.
        name: String,
        /// The folder that was searched.
        folder: PathBuf,
        /// How to get it.
        advice: String,
    },
    /// No model was named and none is there.
    #[error(
        "no model: looked for test-data/models/*.gguf in the folders above and for the usual names in {}; \
         get one with `stonechat pull base` or `cargo xtask models base`, or name a file with --model",
        folder.display()
    )]
    NoModel {
        /// The folder that was searched.
        folder: PathBuf,
    },
    /// Nothing says where models are kept.
    #[error("no home folder is known: set STONECHAT_MODELS to a folder")]
    NoModelsFolder,
    /// A name that no download is known for.
    #[error("no model to pull is called `{name}`: expected one of {expected}, or user/repo[:file]")]
    UnknownName {
        /// What was asked for.
        name: String,
        /// The names that are known.
        expected: String,
    },
    /// The hub could not be reached or refused.
    #[error("cannot fetch {what} from the Hugging Face hub: {reason}")]
    Hub {
        /// Repository and file.
        what: String,
        /// What the client says, on one line.
        reason: String,
    },
    /// A repository without weights in a known format.
    #[error("the repository {repo} has no {expected}")]
    NoWeights {
        /// The repository.
        repo: String,
        /// What was looked for.
        expected: &'static str,
    },
    /// What was downloaded is not what the hub announced.
    #[error(
        "{file} was damaged on its way: expected SHA-256 {expected}, got {got}; it was removed, pull again"
    )]
    Checksum {
        /// The file.
        file: String,
        /// Announced.
        expected: String,
        /// Computed.
        got: String,
    },
    /// The models folder cannot be used.
    #[error("cannot {action} `{}`: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}
