//! `stonechat show`: properties of a model.

use std::fmt::Write;

use anyhow::Context;
use serde_json::json;
use stonechat::formats::ModelFile;
use stonechat::{Details, Models};

use super::kind_name;
use crate::completions::installed_names;
use crate::find_model::find;
use crate::{format_bytes, format_count};

const EXAMPLES: &str = "\
Examples:
  stonechat show base
  stonechat show model.gguf --template";

/// Metadata keys of a GGUF file that are shown, with their labels.
const KEYS: [(&str, &str); 4] = [
    ("general.name", "name"),
    ("general.license", "licence"),
    ("general.license.link", "licence link"),
    ("general.source.url", "source"),
];

/// Arguments of `stonechat show`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// Model: file, folder or name
    #[arg(value_name = "MODEL", add = installed_names())]
    model: String,
    /// Print the chat template
    #[arg(long, conflicts_with = "json")]
    template: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Prints the properties in the headers of a model.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let path = find(&args.model)?;
    let file = ModelFile::open(&path)?;
    let details =
        Details::of(&file).with_context(|| format!("cannot read `{}`", path.display()))?;
    if args.template {
        let template = details.chat_template.context("the model has no chat template")?;
        return Ok(crate::print(&format!("{}\n", template.trim_end()))?);
    }
    let text = if args.json { json(&path, &file, &details) } else { text(&path, &file, &details)? };
    Ok(crate::print(&text)?)
}

fn text(path: &std::path::Path, file: &ModelFile, details: &Details) -> anyhow::Result<String> {
    let mut text = String::new();
    let mut row = |label: &str, value: String| writeln!(text, "{label:14}  {value}");
    row("kind", kind_name(details.kind).to_owned())?;
    row("architecture", details.architecture.to_owned())?;
    for (key, label) in KEYS {
        if let Ok(value) = file.metadata().str(key) {
            row(label, value.to_owned())?;
        }
    }
    row("parameters", format_count(details.n_parameters))?;
    row("weights", details.weights.to_owned())?;
    row("context", format!("{} tokens", details.n_ctx))?;
    row("layers", details.n_layers.to_string())?;
    row("width", details.width.to_string())?;
    row("vocabulary", format!("{} tokens", details.vocab_size))?;
    if details.kind == stonechat::ModelKind::Language {
        let has = if details.chat_template.is_some() { "yes (--template)" } else { "none" };
        row("chat template", has.to_owned())?;
    }
    row("size", format_bytes(Models::bytes_at(path, file)))?;
    row("memory", format!("about {}", format_bytes(details.memory_bytes)))?;
    row("format", file.format().to_string())?;
    row("path", path.display().to_string())?;
    Ok(text)
}

fn json(path: &std::path::Path, file: &ModelFile, details: &Details) -> String {
    let object = json!({
        "kind": kind_name(details.kind),
        "architecture": details.architecture,
        "parameters": details.n_parameters,
        "type": details.weights,
        "context": details.n_ctx,
        "layers": details.n_layers,
        "width": details.width,
        "vocabulary": details.vocab_size,
        "chat_template": details.chat_template,
        "bytes": Models::bytes_at(path, file),
        "memory_bytes": details.memory_bytes,
        "format": file.format().to_string(),
        "path": path,
    });
    format!("{object}\n")
}
