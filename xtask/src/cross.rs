//! `cargo xtask cross-test`: the tests of the kernels for ARM, in QEMU's user mode.
//!
//! QEMU's `max` CPU has `dotprod`, so that every tier of NEON is tested. The emulation says nothing about speed.

use anyhow::{Result, bail};

use crate::shell;

const TARGET: &str = "aarch64-unknown-linux-gnu";
const LINKER: &str = "aarch64-linux-gnu-gcc";
const RUNNER: &str = "qemu-aarch64";
const PACKAGES: [&str; 2] = ["stonechat-compute", "stonechat-quant"];

/// Options of `cargo xtask cross-test`.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct CrossArgs {
    /// Test only this package; may be repeated
    #[arg(short, long)]
    package: Vec<String>,
    /// Run only tests whose names contain this
    filter: Option<String>,
}

/// Runs the tests, in a target folder of their own.
pub(crate) fn run(args: &CrossArgs) -> Result<()> {
    for program in [LINKER, RUNNER] {
        if shell::output(std::process::Command::new(program).arg("--version")).is_err() {
            bail!(
                "no `{program}`: run `rustup target add {TARGET}` and, on Debian, \
                 `apt-get install gcc-aarch64-linux-gnu qemu-user`"
            );
        }
    }
    let mut test = shell::cargo();
    test.args(["test", "--target", TARGET, "--lib", "--tests"])
        .arg("--target-dir")
        .arg(shell::target_dir().join("cross"))
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER)
        .env(
            "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER",
            format!("{RUNNER} -cpu max -L /usr/aarch64-linux-gnu"),
        );
    let chosen = args.package.iter().map(String::as_str);
    let all = PACKAGES.into_iter().filter(|_| args.package.is_empty());
    for package in chosen.chain(all) {
        test.args(["--package", package]);
    }
    test.args(&args.filter);
    shell::run(&mut test)
}
