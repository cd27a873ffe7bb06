//! `cargo xtask wasm`: every library crate compiles for wasm32-unknown-unknown.
//!
//! Only type checking is asked for, so nothing is linked.

use anyhow::Result;

use crate::{build_std, shell};

pub(crate) const TARGET: &str = "wasm32-unknown-unknown";
/// Variables of cargo for this target.
pub(crate) const FLAGS: &str = "CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS";
pub(crate) const LINKER: &str = "CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER";
/// Linker of the compiler's LLVM; older ones do not know all of its features.
pub(crate) const WASM_LD: &str = "/usr/bin/wasm-ld-22";
const PACKAGES: [&str; 10] = [
    "stonechat-compute",
    "stonechat-quant",
    "stonechat-formats",
    "stonechat-text",
    "stonechat-audio",
    "stonechat-nn",
    "stonechat-sampling",
    "stonechat-whisper",
    "stonechat-llm",
    "stonechat-api",
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
    if build_std::unless_installed(&mut check, TARGET, "std,panic_abort")? {
        check
            // The library is compiled although it is only checked against.
            .env("CARGO_PROFILE_DEV_OPT_LEVEL", "0")
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .env(LINKER, WASM_LD)
            .env(FLAGS, "-D warnings -C linker-flavor=wasm-ld");
    }
    shell::run(&mut check)
}
