//! Finding the model of a verb, and downloading one that is missing.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use stonechat::{Error, Models};

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
        Err(Error::ModelNotFound { .. }) if offers(name)? => pull(name),
        found => Ok(found?),
    }
}

/// Finds the default speech model; on a terminal, offers to download one if there is none.
pub(super) fn find_default() -> anyhow::Result<PathBuf> {
    const DEFAULT: &str = "base";
    match models().find_default() {
        Err(Error::NoModel { .. }) if offers(DEFAULT)? => pull(DEFAULT),
        found => Ok(found?),
    }
}

/// Finds a model, or downloads it without asking.
pub(super) fn find_or_pull(name: &str) -> anyhow::Result<PathBuf> {
    match models().find(name) {
        Err(Error::ModelNotFound { .. }) if Models::is_hub_name(name) => pull(name),
        found => Ok(found?),
    }
}

#[cfg(feature = "pull")]
use hub::{offers, pull};

/// Downloads, in a build with the feature `pull`.
#[cfg(feature = "pull")]
mod hub {
    use std::io::{self, IsTerminal, Write};
    use std::path::PathBuf;

    use anyhow::Context;
    use stonechat::{CatalogEntry, Models};

    use crate::console::Console;
    use crate::format_bytes;

    /// Asks on a terminal whether to download `name`; false elsewhere, and for a name that is not on the hub.
    pub(super) fn offers(name: &str) -> anyhow::Result<bool> {
        let is_terminal = io::stdin().is_terminal() && io::stderr().is_terminal();
        if !is_terminal || !Models::is_hub_name(name) {
            return Ok(false);
        }
        let size = CatalogEntry::find(name)
            .map(|entry| format!(" ({})", format_bytes(u64::from(entry.download_mb) * 1_000_000)))
            .unwrap_or_default();
        let mut stderr = io::stderr();
        write!(stderr, "the model {name} is not installed: download it{size}? [Y/n] ")?;
        stderr.flush()?;
        let mut answer = String::new();
        let n = io::stdin().read_line(&mut answer).context("cannot read standard input")?;
        let answer = answer.trim().to_lowercase();
        Ok(n > 0 && matches!(answer.as_str(), "" | "y" | "yes"))
    }

    /// Downloads a model with a progress bar.
    pub(super) fn pull(name: &str) -> anyhow::Result<PathBuf> {
        pull_to(&Console::new(false), name)
    }

    /// Downloads a model with a progress bar on `console`.
    pub(crate) fn pull_to(console: &Console, name: &str) -> anyhow::Result<PathBuf> {
        let mut current = String::new();
        let path = stonechat::pull::pull(&super::models(), name, &mut |progress| {
            if current != progress.file {
                progress.file.clone_into(&mut current);
                console.begin_download(progress.file, progress.total);
            }
            console.advance(progress.done);
        });
        console.end();
        Ok(path?)
    }
}

#[cfg(feature = "pull")]
pub(super) use hub::pull_to;

#[cfg(not(feature = "pull"))]
fn offers(_: &str) -> anyhow::Result<bool> {
    Ok(false)
}

#[cfg(not(feature = "pull"))]
fn pull(_: &str) -> anyhow::Result<PathBuf> {
    anyhow::bail!("this build downloads no models (feature `pull`)")
}
