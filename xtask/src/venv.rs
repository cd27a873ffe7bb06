//! Python environments under the target folder, for tools and references that pip installs.

use std::path::PathBuf;

use anyhow::Result;

use crate::shell;

/// The folder of programs of the environment `name` with `requirements` (as pip takes them)
/// installed, then `alone` without their dependencies. An environment that was made for the same
/// packages is reused.
///
/// # Errors
/// If Python or pip fails.
pub fn programs(name: &str, requirements: &[&str], alone: &[&str]) -> Result<PathBuf> {
    let folder = shell::target_dir().join(format!("venv-{name}"));
    let programs = folder.join(if cfg!(windows) { "Scripts" } else { "bin" });
    let stamp = folder.join("requirements");
    let wanted = [requirements, alone].concat().join("\n");
    if std::fs::read_to_string(&stamp).is_ok_and(|made_for| made_for == wanted) {
        return Ok(programs);
    }
    shell::run(shell::program("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
    let python = programs.join("python");
    for (packages, option) in [(requirements, None), (alone, Some("--no-deps"))] {
        if !packages.is_empty() {
            let mut pip = shell::program(&python);
            pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
            shell::run(pip.args(option).args(packages))?;
        }
    }
    std::fs::write(&stamp, wanted)?;
    Ok(programs)
}
