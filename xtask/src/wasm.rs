//! `cargo xtask wasm`: every library crate compiles for wasm32-unknown-unknown.
//!
//! The target of rustup is used where it is installed. Where it cannot be had, Debian's packages
//! `rustc-web` and `rust-web-src` give a compiler and the sources of its standard library, which
//! cargo then builds as well. Only type checking is asked for, so nothing is linked.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::shell;

const TARGET: &str = "wasm32-unknown-unknown";
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";
const FLAGS: &str = "CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS";
const PACKAGES: [&str; 9] = [
    "stonechat-compute",
    "stonechat-quant",
    "stonechat-formats",
    "stonechat-text",
    "stonechat-audio",
    "stonechat-nn",
    "stonechat-sampling",
    "stonechat-whisper",
    "stonechat-llm",
];

/// Crate that only this check builds without its default features.
const FACADE: &str = "stonechat";

/// Options of `cargo xtask wasm`.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct WasmArgs {
    /// Check only this package; may be repeated
    #[arg(short, long)]
    package: Vec<String>,
}

/// Checks the library crates, in a target folder of their own: without a GPU, then with wgpu, which runs in browsers, too.
/// The facade has its default features off, since CUDA does not exist there.
pub(crate) fn run(args: &WasmArgs) -> Result<()> {
    let is_chosen = |name: &str| args.package.is_empty() || args.package.iter().any(|p| p == name);
    let chosen = args.package.iter().map(String::as_str).filter(|name| *name != FACADE);
    let all = PACKAGES.into_iter().filter(|_| args.package.is_empty());
    let crates: Vec<&str> = chosen.chain(all).collect();
    if !crates.is_empty() {
        check(&crates, &[])?;
    }
    if args.package.is_empty() {
        check(&crates, &["--features", "stonechat-nn/wgpu"])?;
    }
    if is_chosen(FACADE) {
        check(&[FACADE], &["--no-default-features"])?;
        check(&[FACADE], &["--no-default-features", "--features", "grammar,tokenizers,wgpu"])?;
    }
    Ok(())
}

fn check(packages: &[&str], features: &[&str]) -> Result<()> {
    let mut check = shell::cargo();
    check.args(["check", "--keep-going", "--target", TARGET]);
    check.arg("--target-dir").arg(shell::target_dir().join("wasm"));
    // Clippy does not see what only this target leaves unused.
    check.env(FLAGS, "-D warnings");
    check.args(features);
    for package in packages {
        check.args(["--package", package]);
    }
    if !has_std(Path::new("rustc")) {
        let sources = sysroot(Path::new(DEBIAN_RUSTC))
            .map(|root| root.join("lib/rustlib/src/rust/library/std/Cargo.toml"));
        if !sources.is_some_and(|path| path.exists()) {
            bail!(
                "no standard library for {TARGET}: run `rustup target add {TARGET}`, \
                 or on Debian `apt-get install rustc-web rust-web-src lld`"
            );
        }
        check
            .args(["-Z", "build-std=std,panic_abort"])
            .env("RUSTC", DEBIAN_RUSTC)
            // Building the standard library is unstable; the code itself uses nothing unstable.
            .env("RUSTC_BOOTSTRAP", "1")
            // The library is compiled although it is only checked against.
            .env("CARGO_PROFILE_DEV_OPT_LEVEL", "0")
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", "/usr/bin/wasm-ld")
            .env(FLAGS, "-D warnings -C linker-flavor=wasm-ld");
    }
    shell::run(&mut check)
}

/// Whether `rustc` has the precompiled standard library of the target.
fn has_std(rustc: &Path) -> bool {
    let lib = sysroot(rustc).map(|root| root.join("lib/rustlib").join(TARGET).join("lib"));
    lib.and_then(|lib| std::fs::read_dir(lib).ok()).is_some_and(|mut files| {
        files.any(|file| file.is_ok_and(|f| f.file_name().to_string_lossy().starts_with("libstd-")))
    })
}

fn sysroot(rustc: &Path) -> Option<PathBuf> {
    let mut command = Command::new(rustc);
    command.current_dir(shell::workspace_root()).args(["--print", "sysroot"]);
    shell::output(&mut command).ok().map(|path| PathBuf::from(path.trim()))
}
