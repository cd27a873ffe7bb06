//! The language model that writes given answers, which `client-test` and `soak` know beforehand.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::shell;

/// Name of the model.
pub(crate) const NAME: &str = "scripted";
/// Script of the model, and the program that makes the file.
const SCRIPT: &str = "crates/server/tests/scripted/script.json";
const TEMPLATE: &str = "crates/server/tests/scripted/template.jinja";
const TOOLS: &str = "xtask-tools";
const SYNTH: &str = "xtask/tools/src/synth/script.rs";

/// File of the model, made again if its script is newer.
pub(crate) fn file() -> Result<PathBuf> {
    let folder = shell::target_dir().join("client-test");
    let path = folder.join(format!("{NAME}.gguf"));
    let time = |path: &Path| fs::metadata(path).and_then(|file| file.modified()).ok();
    let sources = [SCRIPT, TEMPLATE, SYNTH].map(|file| shell::workspace_root().join(file));
    if time(&path).is_some_and(|made| sources.iter().all(|source| time(source) < Some(made))) {
        return Ok(path);
    }
    fs::create_dir_all(folder)?;
    // With the profile and the features of the tests, which have compiled the engine.
    let mut build = shell::cargo_with_checks();
    shell::run(build.args(["build", "--quiet", "--release", "--workspace", "--bin", TOOLS]))?;
    let tools = format!("{TOOLS}{}", std::env::consts::EXE_SUFFIX);
    let mut synth = shell::program(shell::target_dir().join("release").join(tools));
    shell::run(synth.args(["synth", "--script", SCRIPT, "-o"]).arg(&path))?;
    Ok(path)
}
