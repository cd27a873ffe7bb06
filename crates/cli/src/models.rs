//! `stonechat models`, `show` and `rm`: installed models, and those that can be downloaded.

mod remove;
mod show;

use std::path::PathBuf;

use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Value, json};
use stonechat::{CATALOG, Details, Installed, ModelKind};

use super::console::Console;
use super::find_model::models;
use super::{format_bytes, format_count};

pub(super) use remove::{Args as RemoveArgs, run as remove};
pub(super) use show::{Args as ShowArgs, run as show};

const EXAMPLES: &str = "\
Examples:
  stonechat models
  stonechat models --available
  stonechat models --json";

/// Arguments of `stonechat models`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Args {
    /// List the short names of models to download instead
    #[arg(long)]
    available: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Prints the models.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let text = match (args.available, args.json) {
        (false, false) => installed_text()?,
        (false, true) => installed_json()?.to_string(),
        (true, false) => available_text(),
        (true, true) => available_json().to_string(),
    };
    Ok(super::print(&format!("{}\n", text.trim_end()))?)
}

/// Installed models with their properties, or the error of reading them.
fn read_all() -> anyhow::Result<Vec<(Installed, Result<Details, stonechat::Error>)>> {
    let all = models().installed()?.into_iter();
    let read = all.map(|model| {
        let details = model.details();
        (model, details)
    });
    // The cache of other programs has models for other programs.
    Ok(read.filter(|(model, details)| !model.is_in_hub_cache || details.is_ok()).collect())
}

fn installed_text() -> anyhow::Result<String> {
    let all = read_all()?;
    let folder = models().folder()?.to_owned();
    if all.is_empty() {
        return Ok(format!(
            "no models in {}: `stonechat pull base` downloads one, `stonechat models --available` lists more",
            folder.display()
        ));
    }
    let mut table = table(&["NAME", "KIND", "ARCHITECTURE", "TYPE", "PARAMETERS", "SIZE"], 4);
    for (model, details) in &all {
        let size = format_bytes(model.bytes);
        let name = model.name.clone();
        match details {
            Ok(details) => table.add_row([
                name,
                kind_name(details.kind).to_owned(),
                details.architecture.to_owned(),
                details.weights.to_owned(),
                format_count(details.n_parameters),
                size,
            ]),
            Err(error) => {
                Console::new(false).note(&format!("{name}: {error}"));
                let unknown = || "-".to_owned();
                table.add_row([name, unknown(), unknown(), unknown(), unknown(), size])
            }
        };
    }
    let default = match models().find_default() {
        Ok(path) => path.display().to_string(),
        Err(_) => "none".to_owned(),
    };
    let folder = folder.display();
    Ok(format!("{}\n\nfolder {folder}\ndefault speech model: {default}", trimmed(&table)))
}

fn installed_json() -> anyhow::Result<Value> {
    let entries: Vec<_> = read_all()?
        .iter()
        .map(|(model, details)| {
            let details = details.as_ref().ok();
            json!({
                "name": model.name,
                "kind": details.map(|details| kind_name(details.kind)),
                "architecture": details.map(|details| details.architecture),
                "type": details.map(|details| details.weights),
                "parameters": details.map(|details| details.n_parameters),
                "bytes": model.bytes,
                "path": model.path,
                "in_hub_cache": model.is_in_hub_cache,
            })
        })
        .collect();
    let default: Option<PathBuf> = models().find_default().ok();
    Ok(json!({ "folder": models().folder()?, "default": default, "models": entries }))
}

fn available_text() -> String {
    let mut table = table(&["NAME", "KIND", "REPOSITORY", "DOWNLOAD", "MEMORY"], 3);
    for entry in CATALOG {
        let [download, memory] =
            [entry.download_mb, entry.memory_mb].map(|mb| format_bytes(u64::from(mb) * 1_000_000));
        let weights = entry.weights.map(|weights| format!(":{weights}")).unwrap_or_default();
        table.add_row([
            entry.name.to_owned(),
            kind_name(entry.kind).to_owned(),
            format!("{}{weights}", entry.repo),
            download,
            memory,
        ]);
    }
    format!("{}\n\nany other: `stonechat pull user/repo`, of the Hugging Face hub", trimmed(&table))
}

fn available_json() -> Value {
    let entries: Vec<_> = CATALOG
        .iter()
        .map(|entry| {
            json!({
                "name": entry.name,
                "kind": kind_name(entry.kind),
                "repository": entry.repo,
                "type": entry.weights,
                "download_mb": entry.download_mb,
                "memory_mb": entry.memory_mb,
            })
        })
        .collect();
    json!({ "models": entries })
}

/// Table without lines: the first `n_left` columns to the left, the others to the right.
fn table(header: &[&str], n_left: usize) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header.to_vec());
    for (i, column) in table.column_iter_mut().enumerate() {
        let side = if i < n_left { CellAlignment::Left } else { CellAlignment::Right };
        column.set_padding((0, 2)).set_cell_alignment(side);
    }
    table
}

/// Text of a table without spaces at the ends of lines.
fn trimmed(table: &Table) -> String {
    let lines: Vec<_> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    lines.join("\n")
}

fn kind_name(kind: ModelKind) -> &'static str {
    match kind {
        ModelKind::Speech => "speech",
        ModelKind::Language => "language",
        _ => "other",
    }
}
