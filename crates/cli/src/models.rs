//! `stonechat models`: installed models.

use std::fmt::Write;

use stonechat::Models;

/// Arguments of `stonechat models`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:\n  stonechat models\n  stonechat models --json")]
pub(super) struct Args {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Prints the models folder, its models and the default model.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let models = Models::from_env();
    let folder = models.folder()?;
    let installed = models.installed()?;
    let default = models.find_default().ok();
    if args.json {
        let entries: Vec<_> = installed
            .iter()
            .map(|m| serde_json::json!({ "name": m.name, "path": m.path, "bytes": m.bytes }))
            .collect();
        let all = serde_json::json!({ "folder": folder, "default": default, "models": entries });
        super::print(&format!("{all}\n"))?;
        return Ok(());
    }
    let mut text = format!("{}\n", folder.display());
    for model in &installed {
        let bytes = super::format_bytes(model.bytes);
        writeln!(text, "  {:24} {bytes:>12}", model.name)?;
    }
    if installed.is_empty() {
        text.push_str("  no models; `stonechat pull base` downloads one\n");
    }
    match default {
        Some(path) => writeln!(text, "default: {}", path.display())?,
        None => text.push_str("default: none\n"),
    }
    super::print(&text)?;
    Ok(())
}
