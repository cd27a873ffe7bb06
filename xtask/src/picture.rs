//! `cargo xtask picture`: the terminal in the README, drawn from a real run.

use anyhow::{Context, Result};

use crate::{models, shell, venv};

const OUT: &str = "docs/images/terminal.svg";
const REQUIREMENTS: [&str; 1] = ["rich==14.1.0"];
const COMMANDS: [&str; 2] = [
    "stonechat transcribe test-data/audio/quick_brown_fox.wav",
    "stonechat chat -m qwen2.5-coder-1.5b --temp 0 -q --single-turn -p 'Why do foxes jump? One sentence.'",
];

/// Builds the command line, installs the model and draws.
pub(crate) fn run() -> Result<()> {
    models::install(&["qwen2.5-coder-1.5b"])?;
    shell::run(shell::cargo().args(["build", "--release", "--package", "stonechat-cli"]))?;
    let python = venv::programs("picture", &REQUIREMENTS, &[])?.join("python");
    let binaries = shell::target_dir().join("release");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(binaries).chain(std::env::split_paths(&path));
    let path =
        std::env::join_paths(folders).context("a folder of PATH has a separator in its name")?;
    let mut script = shell::program(python);
    script.args(["xtask/assets/terminal.py", OUT]).args(COMMANDS).env("PATH", path);
    shell::run(&mut script)
}
