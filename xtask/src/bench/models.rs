//! Models of a run and their files.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use stonechat_benches::protocol::{ModelKind, Reply, Request};

use super::engine::Engine;
use super::folder;
use crate::models;

/// A model on this machine.
#[derive(Debug, Clone)]
pub(super) struct Model {
    /// As in tables.
    pub(super) name: String,
    pub(super) kind: ModelKind,
    /// The type that most weights have.
    pub(super) dtype: String,
    pub(super) is_quantized: bool,
    /// The file or folder that this engine reads.
    pub(super) path: PathBuf,
    /// The file or folder that it was made from, the same if it was not.
    pub(super) source: PathBuf,
}

/// A model as the command line names it: `NAME`, or `NAME:TYPE` for a speech model with other weights.
fn split(name: &str) -> (&str, Option<&str>) {
    // A path may have a colon of its own.
    match name.rsplit_once(':') {
        Some((name, dtype)) if !dtype.contains(['/', '\\']) && !dtype.is_empty() => {
            (name, Some(dtype))
        }
        _ => (name, None),
    }
}

/// Finds a model; `worker` looks into it and converts it where a type is named.
pub(super) fn find(worker: &mut Engine, wanted: &str) -> Result<Model> {
    let (name, dtype) = if Path::new(wanted).exists() { (wanted, None) } else { split(wanted) };
    let source = models::locate(name)?;
    let inspect = Request::Inspect { model: source.clone() };
    let reply = worker.ask(&inspect).with_context(|| format!("--model {wanted}"))?;
    let Reply::Model { kind, dtype: stored, is_quantized } = reply else {
        bail!("--model {wanted}: expected a description, got {reply:?}")
    };
    let stem = Path::new(name).file_stem().unwrap_or(name.as_ref()).to_string_lossy().into_owned();
    // `base` and `qwen2.5-coder-0.5b` are names, not a file with an extension.
    let short = if Path::new(name).exists() { stem } else { name.to_owned() };
    let mut model =
        Model { name: short, kind, dtype: stored, is_quantized, path: source.clone(), source };
    if let Some(dtype) = dtype {
        ensure!(
            kind == ModelKind::Speech,
            "--model {wanted}: only speech models are converted on the fly; `stonechat quantize` writes \
             language models"
        );
        model = converted(worker, &model, Some(dtype))?;
        model.name = format!("{}-{dtype}", model.name);
    }
    Ok(model)
}

/// The same model in a whisper.cpp file, which is made once.
pub(super) fn converted(worker: &mut Engine, model: &Model, dtype: Option<&str>) -> Result<Model> {
    let to_folder = folder()?.join("models");
    fs::create_dir_all(&to_folder)?;
    let suffix = dtype.map_or_else(String::new, |dtype| format!("-{dtype}"));
    let to = to_folder.join(format!("{}{suffix}-{:x}.bin", model.name, stamp(&model.source)));
    if !to.is_file() {
        let (model, dtype) = (model.source.clone(), dtype.map(str::to_owned));
        worker.ask(&Request::Convert { model, to: to.clone(), dtype })?;
    }
    let inspect = Request::Inspect { model: to.clone() };
    let Reply::Model { dtype, is_quantized, .. } = worker.ask(&inspect)? else {
        bail!("{}: expected a description", to.display())
    };
    Ok(Model { path: to, dtype, is_quantized, ..model.clone() })
}

/// Differs between files at the same place.
fn stamp(path: &Path) -> u64 {
    let path = if path.is_dir() { path.join("model.bin") } else { path.to_owned() };
    let metadata = fs::metadata(&path).ok();
    let modified = metadata.as_ref().and_then(|m| m.modified().ok());
    let since = modified.and_then(|m| m.duration_since(std::time::UNIX_EPOCH).ok());
    let bytes = metadata.map_or(0, |m| m.len());
    since.map_or(0, |since| since.as_secs()).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ bytes
}

/// Names of the models that run when none is named: those of `cargo xtask models` that are installed and
/// the one of this checkout; in a quick run the checkout's and the smallest language model.
pub(super) fn default_names(quick: bool) -> Result<Vec<String>> {
    let folder = models::models_dir()?;
    let installed = |name: &str| folder.join(name).is_dir();
    let mut names = vec!["tiny.en-q5_1".to_owned()];
    let known = [
        "tiny.en",
        "base",
        "smollm2-135m",
        "gemma3-270m",
        "qwen2.5-coder-0.5b",
        "qwen2.5-coder-1.5b",
    ];
    let wanted = known.iter().filter(|name| !quick || **name == "smollm2-135m");
    names.extend(wanted.filter(|name| installed(name)).map(|name| (*name).to_owned()));
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_follow_a_colon() {
        assert_eq!(split("tiny.en"), ("tiny.en", None));
        assert_eq!(split("base:q8_0"), ("base", Some("q8_0")));
        assert_eq!(split("C:/models/base"), ("C:/models/base", None));
    }
}
