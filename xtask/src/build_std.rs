//! The standard library from source, for targets whose library rustup does not have here.
//!
//! Debian's packages `rustc-web` and `rust-web-src` give a compiler for every target and the sources of its standard
//! library, which cargo then builds as well.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::shell;

const DEBIAN_RUSTC: &str = "/usr/bin/rustc";

/// Has `cargo` build `crates` of the standard library for `target`, unless rustup has it. Returns whether it does.
///
/// # Errors
/// If there is neither the library nor its source.
pub(crate) fn unless_installed(cargo: &mut Command, target: &str, crates: &str) -> Result<bool> {
    if has_std(Path::new("rustc"), target) {
        return Ok(false);
    }
    from_source(cargo, target, crates)?;
    Ok(true)
}

/// Has `cargo` build `crates` of the standard library for `target`.
///
/// # Errors
/// If there is no source.
pub(crate) fn from_source(cargo: &mut Command, target: &str, crates: &str) -> Result<()> {
    let sources = sysroot(Path::new(DEBIAN_RUSTC))
        .map(|root| root.join("lib/rustlib/src/rust/library/std/Cargo.toml"));
    if !sources.is_some_and(|path| path.exists()) {
        bail!(
            "no standard library for {target}: run `rustup target add {target}`, \
             or on Debian `apt-get install rustc-web rust-web-src lld-22`"
        );
    }
    cargo
        .arg("-Z")
        .arg(format!("build-std={crates}"))
        .env("RUSTC", DEBIAN_RUSTC)
        // Building the standard library is unstable; the code itself uses nothing unstable.
        .env("RUSTC_BOOTSTRAP", "1");
    Ok(())
}

/// Whether `rustc` has the precompiled standard library of `target`.
fn has_std(rustc: &Path, target: &str) -> bool {
    let lib = sysroot(rustc).map(|root| root.join("lib/rustlib").join(target).join("lib"));
    lib.and_then(|lib| std::fs::read_dir(lib).ok()).is_some_and(|mut files| {
        files.any(|file| file.is_ok_and(|f| f.file_name().to_string_lossy().starts_with("libstd-")))
    })
}

fn sysroot(rustc: &Path) -> Option<PathBuf> {
    let mut command = Command::new(rustc);
    command.current_dir(shell::workspace_root()).args(["--print", "sysroot"]);
    shell::output(&mut command).ok().map(|path| PathBuf::from(path.trim()))
}
