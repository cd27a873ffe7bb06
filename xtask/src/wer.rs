//! `cargo xtask wer`: word error rate on a manifest.

use anyhow::{Result, bail};

/// Options of `cargo xtask wer`.
#[derive(Debug, clap::Args)]
pub(crate) struct WerArgs {}

/// Runs the manifest.
pub(crate) fn run(_args: WerArgs) -> Result<()> {
    bail!("not built yet")
}
