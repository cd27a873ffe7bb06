//! Packages of a suite: Python environments and folders of Node below the target folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::suites::Suite;
use crate::{shell, venv};

/// Scripts of the checks, beside the files of their packages.
pub(super) const PYTHON_FOLDER: &str = "crates/server/tests/python";
const NODE_FOLDER: &str = "crates/server/tests/node";

/// The command of a suite's checks, whose packages are installed.
pub(super) fn command(suite: &Suite) -> Result<Command> {
    let programs = suite.requirements.map(|file| programs(suite, file)).transpose()?;
    let Some(folder) = suite.node else {
        let programs = programs.context("a suite without packages")?;
        let mut checks = shell::program(programs.join("python"));
        checks.arg(shell::workspace_root().join(PYTHON_FOLDER).join("client.py"));
        checks.args(["--suite", suite.name]);
        return Ok(checks);
    };
    let folder = node(folder)?;
    let mut checks = shell::program("node");
    checks.arg(folder.join(format!("{}.mjs", suite.name))).current_dir(folder);
    if let Some(programs) = programs {
        checks.arg("--programs").arg(programs);
    }
    Ok(checks)
}

/// The folder of programs of a Python environment with the packages of a file.
fn programs(suite: &Suite, file: &str) -> Result<PathBuf> {
    let path = shell::workspace_root().join(PYTHON_FOLDER).join(file);
    let requirements =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let requirements: Vec<&str> = requirements.lines().collect();
    let name = file.trim_end_matches(".txt").replace("requirements", "client-test");
    ensure!(
        shell::succeeds(Command::new("python3").arg("--version")),
        "expected python3 on the path"
    );
    if suite.is_partial {
        // Some dependencies, such as PyTorch, are large and not needed.
        return venv::programs(&name, &[], &requirements);
    }
    venv::programs(&name, &requirements, &[])
}

/// A folder with the scripts and the packages of `name`, which npm has installed from the lockfile.
fn node(name: &str) -> Result<PathBuf> {
    ensure!(
        shell::succeeds(Command::new("node").arg("--version")),
        "expected Node 20 or newer on the path"
    );
    let source = shell::workspace_root().join(NODE_FOLDER);
    let folder = shell::target_dir().join(format!("node-client-test-{name}"));
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    for entry in fs::read_dir(&source)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "mjs") {
            copy(&path, &folder)?;
        }
    }
    let lock = "package-lock.json";
    let wanted = fs::read(source.join(name).join(lock))
        .with_context(|| format!("cannot read {lock} of {name}"))?;
    let stamp = folder.join("installed.json");
    if fs::read(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(folder);
    }
    for file in [lock, "package.json"] {
        copy(&source.join(name).join(file), &folder)?;
    }
    let mut npm = shell::program("npm");
    // Packages run no scripts: programs are packages themselves.
    npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]).current_dir(&folder);
    shell::run(&mut npm)?;
    fs::write(&stamp, wanted)?;
    Ok(folder)
}

/// Copies a file into a folder.
fn copy(path: &Path, folder: &Path) -> Result<()> {
    let to = folder.join(path.file_name().context("a file has a name")?);
    fs::copy(path, to).with_context(|| format!("cannot copy {}", path.display()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::suites::SUITES;
    use super::*;

    #[test]
    fn packages_are_pinned() {
        for file in SUITES.iter().filter_map(|suite| suite.requirements) {
            let path = shell::workspace_root().join(PYTHON_FOLDER).join(file);
            let text = fs::read_to_string(path).unwrap();
            assert!(text.lines().all(|line| line.contains("==")), "{file}");
            assert!(text.lines().any(|line| line.starts_with("openai==")), "{file}");
        }
        for folder in SUITES.iter().filter_map(|suite| suite.node) {
            let path = shell::workspace_root().join(NODE_FOLDER).join(folder);
            let text = fs::read_to_string(path.join("package.json")).unwrap();
            let package: serde_json::Value = serde_json::from_str(&text).unwrap();
            let versions = package["dependencies"].as_object().unwrap().values();
            for version in versions {
                let is_exact =
                    version.as_str().unwrap().chars().all(|c| c.is_ascii_digit() || c == '.');
                assert!(is_exact, "{folder}: {version}");
            }
        }
    }
}
