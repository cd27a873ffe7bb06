//! Downloads from the Hugging Face hub.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use anyhow::Context;
use stonechat::{CatalogEntry, Models};

use crate::console::Console;
use crate::format_bytes;

/// Template of a bar that counts bytes.
const BYTES: &str =
    "{msg} {wide_bar} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} (eta {eta})";

/// Asks on a terminal whether to download `name`; false elsewhere, and for a name that is not on the hub.
pub(crate) fn offers(name: &str) -> anyhow::Result<bool> {
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

/// Downloads a model with a progress bar on `console`.
pub(crate) fn pull(console: &Console, name: &str) -> anyhow::Result<PathBuf> {
    let mut current = String::new();
    let path = stonechat::pull::pull(&super::models(), name, &mut |progress| {
        if current != progress.file {
            progress.file.clone_into(&mut current);
            console.begin_as(BYTES, progress.file, progress.total);
        }
        console.advance(progress.done);
    });
    console.end();
    Ok(path?)
}
