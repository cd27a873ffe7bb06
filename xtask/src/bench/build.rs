//! Building the worker, of the working tree or of another revision.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::folder;
use crate::shell;

const WORKER: &str = "stonechat-bench-worker";
/// The profile `dist` of `Cargo.toml`.
const DIST: [&str; 4] = [
    "profile.dist.inherits='release'",
    "profile.dist.lto='thin'",
    "profile.dist.codegen-units=1",
    "profile.dist.strip=true",
];

/// Builds this tree's worker in `profile`.
pub(super) fn worker(profile: &str) -> Result<PathBuf> {
    let mut cargo = shell::cargo();
    shell::run(cargo.args(arguments()).args(["--profile", profile]))?;
    built_in(&shell::target_dir(), profile)
}

/// The whole workspace is selected, so that dependencies get the features with which the tests built them.
fn arguments() -> [&'static str; 4] {
    ["build", "--workspace", "--bin", WORKER]
}

fn built_in(target: &Path, profile: &str) -> Result<PathBuf> {
    // Cargo's names of these two differ from their folders'.
    let folder = if profile == "dev" { "debug" } else { profile };
    let path = target.join(folder).join(format!("{WORKER}{}", std::env::consts::EXE_SUFFIX));
    ensure!(path.is_file(), "cargo built no {}", path.display());
    Ok(path)
}

/// Builds the worker of the commit `revision`, a full hash, in a work tree of its own, or takes the one
/// that was built before.
pub(super) fn worker_of(revision: &str, profile: &str) -> Result<PathBuf> {
    let folder = folder()?;
    let kept = folder
        .join("workers")
        .join(format!("{revision}-{profile}{}", std::env::consts::EXE_SUFFIX));
    if kept.is_file() {
        return Ok(kept);
    }
    let tree = folder.join("tree");
    remove_tree(&tree);
    shell::run(
        shell::program("git")
            .args(["worktree", "add", "--quiet", "--detach"])
            .arg(&tree)
            .arg(revision),
    )?;
    let built = build_tree(&tree, &folder.join("target"), profile).with_context(|| {
        format!("cannot build the worker of {revision}, which perhaps is older than the worker")
    });
    remove_tree(&tree);
    fs::create_dir_all(folder.join("workers"))?;
    fs::copy(built?, &kept).with_context(|| format!("cannot write {}", kept.display()))?;
    Ok(kept)
}

fn build_tree(tree: &Path, target: &Path, profile: &str) -> Result<PathBuf> {
    let mut cargo = shell::cargo();
    cargo.current_dir(tree).env("CARGO_TARGET_DIR", target);
    if profile == "dist" {
        // Revisions before this profile get it, too.
        cargo.args(DIST.iter().flat_map(|setting| ["--config", setting]));
    }
    shell::run(cargo.args(arguments()).args(["--profile", profile]))?;
    built_in(target, profile)
}

/// Forgets a work tree, also one that was left behind half made.
fn remove_tree(tree: &Path) {
    let git = |args: &[&str]| {
        let _ = shell::succeeds(shell::program("git").args(args));
    };
    git(&["worktree", "remove", "--force", &tree.to_string_lossy()]);
    let _ = fs::remove_dir_all(tree);
    git(&["worktree", "prune"]);
}

/// The full hash of a commit that is named in any of git's ways.
pub(super) fn find_revision(name: &str) -> Option<String> {
    let commit = format!("{name}^{{commit}}");
    let args = ["rev-parse", "--verify", "--quiet", "--end-of-options", &commit];
    shell::output(shell::program("git").args(args)).ok().map(|hash| hash.trim().to_owned())
}

/// The profile, and what the environment changes about it.
pub(super) fn described_profile(
    profile: &str,
    variables: impl Iterator<Item = (String, String)>,
) -> String {
    let changes = |name: &str| name.starts_with("CARGO_PROFILE_") || name.ends_with("RUSTFLAGS");
    let mut found: Vec<String> = variables
        .filter(|(name, value)| changes(name) && !value.is_empty())
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    found.sort();
    found.insert(0, profile.to_owned());
    found.join(" ")
}

/// The compiler's name and version.
pub(super) fn rustc() -> String {
    shell::output(shell::program("rustc").arg("--version")).unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::described_profile;

    #[test]
    fn what_the_environment_changes_is_told() {
        let variables = [("PATH", "/bin"), ("RUSTFLAGS", ""), ("CARGO_PROFILE_RELEASE_LTO", "off")];
        let owned =
            || variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        assert_eq!(described_profile("release", owned()), "release CARGO_PROFILE_RELEASE_LTO=off");
        assert_eq!(described_profile("dev", owned().take(2)), "dev");
    }
}
