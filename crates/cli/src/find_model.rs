//! Finding the model of a verb, and downloading one that is missing.

#[cfg(feature = "pull")]
mod hub;
#[cfg(not(feature = "pull"))]
mod no_hub;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use stonechat::{Error, Models};

use super::console::Console;
use hub::offers;
#[cfg(not(feature = "pull"))]
use no_hub as hub;

pub(super) use hub::pull;

/// Folder of `--models-dir`.
static MODELS_DIR: OnceLock<PathBuf> = OnceLock::new();

/// Sets the folder of `--models-dir`.
pub(super) fn set_models_dir(folder: &Path) {
    // main calls this once, before any verb runs.
    MODELS_DIR.get_or_init(|| folder.to_owned());
}

/// Installed models: those of `--models-dir`, else of the environment.
pub(super) fn models() -> Models {
    let models = Models::from_env();
    match MODELS_DIR.get() {
        Some(folder) => models.with_folder(folder),
        None => models,
    }
}

/// Finds a model by path or name; on a terminal, offers to download one that is missing.
pub(super) fn find(name: &str) -> anyhow::Result<PathBuf> {
    match models().find(name) {
        Err(Error::ModelNotFound { .. }) if offers(name)? => pull(&Console::new(false), name),
        found => Ok(found?),
    }
}

/// Finds the default speech model; on a terminal, offers to download one if there is none.
pub(super) fn find_default() -> anyhow::Result<PathBuf> {
    const DEFAULT: &str = "base";
    match models().find_default() {
        Err(Error::NoModel { .. }) if offers(DEFAULT)? => pull(&Console::new(false), DEFAULT),
        found => Ok(found?),
    }
}

/// Finds a model, or downloads it without a question.
pub(super) fn find_or_pull(name: &str) -> anyhow::Result<PathBuf> {
    match models().find(name) {
        Err(Error::ModelNotFound { .. }) if Models::is_hub_name(name) => {
            pull(&Console::new(false), name)
        }
        found => Ok(found?),
    }
}
