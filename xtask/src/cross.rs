//! `cargo xtask cross-test`: the tests of the kernels for ARM and the conformance suite, in QEMU's user mode.
//!
//! QEMU's `max` CPU has `dotprod`, so that every tier of NEON is tested. The emulation says nothing about speed.

use anyhow::{Result, bail};

use crate::{build_std, shell};

const TARGET: &str = "aarch64-unknown-linux-gnu";
const LINKER: &str = "aarch64-linux-gnu-gcc";
const RUNNER: &str = "qemu-aarch64";
const KERNELS: [&str; 2] = ["stonechat-compute", "stonechat-quant"];
/// The package of the conformance suite, which runs without GPUs here.
const SUITE: &str = "stonechat-testkit";

/// Options of `cargo xtask cross-test`.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct CrossArgs {
    /// Test only this package; may be repeated
    #[arg(short, long)]
    package: Vec<String>,
    /// Run only tests whose names contain this
    filter: Option<String>,
}

/// Runs the tests, in a target folder of their own: those of the kernels, then the conformance suite.
pub(crate) fn run(args: &CrossArgs) -> Result<()> {
    for program in [LINKER, RUNNER] {
        if shell::output(std::process::Command::new(program).arg("--version")).is_err() {
            bail!(
                "no `{program}`: on Debian run \
                 `apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user`"
            );
        }
    }
    let chosen: Vec<&str> = args.package.iter().map(String::as_str).collect();
    let is_chosen = |package: &&str| chosen.is_empty() || chosen.contains(package);
    let others = chosen.iter().copied().filter(|package| *package != SUITE);
    let kernels: Vec<&str> =
        KERNELS.into_iter().filter(|_| chosen.is_empty()).chain(others).collect();
    if !kernels.is_empty() {
        test(&kernels, &["--lib", "--tests"], args)?;
    }
    if is_chosen(&SUITE) {
        let suite =
            ["--no-default-features", "--test", "conformance", "--test", "quant_conformance"];
        test(&[SUITE], &suite, args)?;
    }
    Ok(())
}

fn test(packages: &[&str], targets: &[&str], args: &CrossArgs) -> Result<()> {
    let mut test = shell::cargo();
    test.args(["test", "--target", TARGET])
        .arg("--target-dir")
        .arg(shell::target_dir().join("cross"))
        .args(targets)
        // Every tier.
        .env("STONECHAT_TEST_ALL", "1")
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER)
        .env(
            "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER",
            format!("{RUNNER} -cpu max -L /usr/aarch64-linux-gnu"),
        );
    build_std::unless_installed(&mut test, TARGET, "std,panic_unwind,test")?;
    for package in packages {
        test.args(["--package", package]);
    }
    test.args(&args.filter);
    shell::run(&mut test)
}
