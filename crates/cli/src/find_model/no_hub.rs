//! A build without the feature `pull`.

use std::path::PathBuf;

use crate::console::Console;

/// Downloads are not offered.
pub(super) fn offers(_: &str) -> anyhow::Result<bool> {
    Ok(false)
}

/// Fails.
pub(crate) fn pull(_: &Console, _: &str) -> anyhow::Result<PathBuf> {
    anyhow::bail!("this build cannot download models (feature `pull`)")
}
