//! Writing of model files, for `convert` and `quantize`.

use std::fs;
use std::path::Path;

use anyhow::{Context, bail};
use stonechat::formats::{DType, Format, ModelFile};
use stonechat::whisper::{ExportFormat, export};

use super::console::Console;
use super::find_model;

/// Writes the model `input` to `output` and prints the sizes.
pub(super) fn write_model(
    input: &str,
    output: &Path,
    weights: Option<DType>,
    quiet: bool,
) -> anyhow::Result<()> {
    let format = ExportFormat::from_path(output).with_context(|| {
        let path = output.display();
        format!("output `{path}`: expected a name that ends in .gguf or .bin")
    })?;
    let source = find_model::find(input)?;
    refuse_overwriting(&source, output)?;
    let file = ModelFile::open(&source)?;
    let console = Console::new(quiet);
    let result = console.stage("writing", |on_progress| {
        if is_language_model(&file) {
            quantize_language_model(&file, output, format, weights, on_progress)
        } else {
            export(&file, output, format, weights, on_progress).map_err(Into::into)
        }
    });
    result.with_context(|| format!("cannot write `{}`", output.display()))?;
    if !quiet {
        let (before, after) = (file.file_bytes(), fs::metadata(output)?.len());
        let (before, after) = (super::format_bytes(before), super::format_bytes(after));
        let path = output.display();
        super::print(&format!("{} {before} -> {path} {after}\n", source.display()))?;
    }
    Ok(())
}

/// Tells a GGUF file of a language model from one of Whisper.
fn is_language_model(file: &ModelFile) -> bool {
    file.format() == Format::Gguf
        && file.metadata().str("general.architecture").is_ok_and(|name| name != "whisper")
}

fn quantize_language_model(
    file: &ModelFile,
    output: &Path,
    format: ExportFormat,
    weights: Option<DType>,
    progress: impl FnMut(f32),
) -> anyhow::Result<()> {
    match (weights, format) {
        (Some(dtype), ExportFormat::Gguf) => {
            Ok(stonechat::llm::quantize(file, output, dtype, progress)?)
        }
        (Some(_), _) => {
            bail!("a language model: expected a name that ends in .gguf")
        }
        (None, _) => bail!("a language model: `convert` is for Whisper models, see `quantize`"),
    }
}

/// Fails if `output` is `input` or a file in the folder `input`.
fn refuse_overwriting(input: &Path, output: &Path) -> anyhow::Result<()> {
    let (Ok(input), Ok(existing)) = (fs::canonicalize(input), fs::canonicalize(output)) else {
        return Ok(());
    };
    if existing == input || existing.parent() == Some(&input) {
        bail!("output `{}` is part of the input: choose another name", output.display());
    }
    Ok(())
}
