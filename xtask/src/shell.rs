//! Running other programs: prints what it runs, fails with one line.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The workspace root, wherever xtask was started.
#[must_use]
pub fn workspace_root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_path_buf()
}

/// The folder that cargo builds into.
#[must_use]
pub fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| workspace_root().join("target"), |dir| workspace_root().join(dir))
}

/// The cargo that runs this xtask, in the workspace root.
#[must_use]
pub fn cargo() -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.current_dir(workspace_root());
    command
}

/// Variables with which cargo's release profile checks the crates of the workspace, but not their dependencies: those are
/// compiled once for tests, benches and `cargo run --release` (see `Cargo.toml`).
const CHECKS: [&str; 2] =
    ["CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS"];

/// [`cargo`], whose release profile is that of the tests.
#[must_use]
pub fn cargo_with_checks() -> Command {
    let mut command = cargo();
    command.envs(CHECKS.map(|name| (name, "true")));
    command
}

/// `program` in the workspace root.
#[must_use]
pub fn program(name: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(name);
    command.current_dir(workspace_root());
    command
}

/// Text of `command` as a person would type it, without its environment and folder.
#[must_use]
pub fn describe(command: &Command) -> String {
    let name = Path::new(command.get_program()).file_stem().unwrap_or(command.get_program());
    let mut text = name.to_string_lossy().into_owned();
    for (key, value) in command.get_envs() {
        if let Some(value) = value {
            text = format!("{}={:?} {text}", key.to_string_lossy(), value.to_string_lossy());
        }
    }
    for arg in command.get_args() {
        text.push(' ');
        text.push_str(&arg.to_string_lossy());
    }
    text
}

/// Prints and runs `command`; an exit status other than 0 is an error.
///
/// # Errors
/// If it cannot be started or fails.
pub fn run(command: &mut Command) -> Result<()> {
    println!("$ {}", describe(command));
    status(command)
}

/// Runs `command` without printing it; an exit status other than 0 is an error.
///
/// # Errors
/// If it cannot be started or fails.
pub fn status(command: &mut Command) -> Result<()> {
    let status =
        command.status().with_context(|| format!("cannot start `{}`", describe(command)))?;
    if !status.success() {
        bail!("`{}` failed: {status}", describe(command));
    }
    Ok(())
}

/// Runs `command` quietly and returns its standard output; on failure the error ends in its last
/// line of standard error.
///
/// # Errors
/// If it cannot be started or fails.
pub fn output(command: &mut Command) -> Result<String> {
    let text = describe(command);
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("cannot start `{text}`"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let reason = stderr.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("");
        bail!("`{text}` failed: {}: {}", output.status, reason.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether `command` starts and exits with status 0; prints nothing.
#[must_use]
pub fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// The commit that is checked out, and whether tracked files differ from it, but for those below the folders `except`;
/// nothing outside a repository.
#[must_use]
pub fn revision(except: &[&str]) -> (String, bool) {
    let git = |args: &[&str]| output(program("git").args(args)).unwrap_or_default();
    let others: Vec<String> = except.iter().map(|folder| format!(":!{folder}")).collect();
    let mut status = vec!["status", "--porcelain", "--untracked-files=no", "--", "."];
    status.extend(others.iter().map(String::as_str));
    let dirty = !git(&status).trim().is_empty();
    (git(&["rev-parse", "HEAD"]).trim().to_owned(), dirty)
}
