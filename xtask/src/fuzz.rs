//! `cargo xtask fuzz`: runs the fuzz targets of `fuzz/` with cargo-fuzz on the nightly toolchain.

use std::fs;

use anyhow::{Context, Result, ensure};

use crate::shell;

/// Seconds for one input, beyond which it counts as a crash.
const HANG: &str = "-timeout=30";

/// Options of `cargo xtask fuzz`.
#[derive(Debug, clap::Args)]
pub(crate) struct FuzzArgs {
    /// A file of `fuzz/fuzz_targets`, without `.rs`; each in turn without one
    target: Option<String>,
    /// Seconds for each target
    #[arg(long, default_value_t = 60)]
    secs: u32,
}

/// Runs one target or all of them; a crash is an error.
pub(crate) fn run(args: &FuzzArgs) -> Result<()> {
    let known = targets()?;
    if let Some(target) = &args.target {
        ensure!(
            known.contains(target),
            "unknown fuzz target {target:?}: expected one of {}",
            known.join(", ")
        );
    }
    // The pinned toolchain is passed down by the cargo that runs this; `+nightly` has to win.
    let cargo = || {
        let mut command = shell::program("cargo");
        command.env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO").args(["+nightly", "fuzz"]);
        command
    };
    ensure!(
        shell::succeeds(cargo().arg("--version")),
        "`cargo +nightly fuzz` does not start: install a nightly toolchain and `cargo install cargo-fuzz`"
    );
    for target in known.iter().filter(|name| args.target.as_ref().is_none_or(|t| t == *name)) {
        let limit = format!("-max_total_time={}", args.secs);
        shell::run(cargo().args(["run", target.as_str(), "--", &limit, HANG]))?;
    }
    Ok(())
}

fn targets() -> Result<Vec<String>> {
    let folder = shell::workspace_root().join("fuzz/fuzz_targets");
    let entries =
        fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            names.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
        }
    }
    names.sort();
    ensure!(!names.is_empty(), "no fuzz target in {}", folder.display());
    Ok(names)
}
