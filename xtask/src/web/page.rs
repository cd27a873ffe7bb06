//! The page of `stonechat serve`: TypeScript of `crates/web/page`, bundled into `crates/server/src/page`.
//!
//! The bundle is checked in, so that a build of the server needs no Node. esbuild and the libraries are pinned by the lockfile.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::shell;

/// File of one of Node's packages, relative to the folder of the tools.
const ESBUILD: &str = "node_modules/esbuild/package.json";

/// Checks the types and bundles the page. With `check` nothing is written, and a bundle that differs from its sources is an
/// error.
pub(crate) fn build(check: bool) -> Result<()> {
    let folder = super::web_folder();
    install(&folder)?;
    shell::run(node(&folder).args(["node_modules/typescript/bin/tsc", "-p", "page"]))?;
    let mut bundle = node(&folder);
    bundle.arg("page/build.mjs");
    if check {
        bundle.arg("--check");
    }
    shell::run(&mut bundle)
}

/// Node in the folder of the tools.
pub(super) fn node(folder: &Path) -> std::process::Command {
    let mut node = shell::program("node");
    node.current_dir(folder);
    node
}

/// Installs the packages of the lockfile, unless those that are installed are the same.
pub(super) fn install(folder: &Path) -> Result<()> {
    if !shell::succeeds(node(folder).arg("--version")) {
        bail!("page and package are built with Node 20 or newer: install it");
    }
    let installed: PathBuf = folder.join("node_modules/.package-lock.json");
    let time = |path: &Path| std::fs::metadata(path).and_then(|file| file.modified()).ok();
    let is_current = time(&installed) >= time(&folder.join("package-lock.json"));
    if folder.join(ESBUILD).exists() && is_current {
        return Ok(());
    }
    let mut npm = shell::program("npm");
    npm.current_dir(folder);
    // Packages run no scripts: the binaries that are used are packages themselves.
    shell::run(npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]))
}
