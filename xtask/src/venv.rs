//! Python environments under the target folder, for tools and references that pip installs.

use std::path::PathBuf;

use anyhow::Result;

use crate::shell;

/// The folder of programs of the environment `name` with `requirements` (as pip takes them)
/// installed. An environment that was made for the same requirements is reused.
pub(crate) fn programs(name: &str, requirements: &[&str]) -> Result<PathBuf> {
    let folder = shell::target_dir().join(format!("venv-{name}"));
    let programs = folder.join(if cfg!(windows) { "Scripts" } else { "bin" });
    let stamp = folder.join("requirements");
    let wanted = requirements.join("\n");
    if std::fs::read_to_string(&stamp).is_ok_and(|made_for| made_for == wanted) {
        return Ok(programs);
    }
    shell::run(shell::program("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
    let mut pip = shell::program(programs.join("python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    shell::run(pip.args(requirements))?;
    std::fs::write(&stamp, wanted)?;
    Ok(programs)
}
