//! `stonechat rm`: removes models.

use crate::completions::installed_names;
use crate::find_model::models;
use crate::format_bytes;

/// Arguments of `stonechat rm`.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "Examples:\n  stonechat rm qwen3:0.6b\n  stonechat rm user/repo:Q8_0 base"
)]
pub(crate) struct Args {
    /// Names that `stonechat models` prints
    #[arg(required = true, value_name = "NAME", add = installed_names())]
    names: Vec<String>,
}

/// Removes each model and prints its name and size.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    for name in &args.names {
        let removed = models().remove(name)?;
        let size = format_bytes(removed.bytes);
        crate::print(&format!("removed {} ({size})\n", removed.name))?;
    }
    Ok(())
}
