//! `cargo xtask test`: sets up, runs every test of the workspace and sums the totals.
//!
//! The output of the test programs is passed on, except what passing tests printed. Of that only
//! lines starting in `SKIPPED ` stay: a test that needs an absent device or model prints one, and
//! counts as skipped here although the test program calls it passed.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use anyhow::{Context, Result, bail};

use crate::{models, setup, shell};

/// Options of `cargo xtask test`.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct TestArgs {
    /// Test only this package; may be repeated
    #[arg(short, long)]
    package: Vec<String>,
    /// Do not install the models first
    #[arg(long)]
    no_setup: bool,
    /// Run only tests whose names contain this
    filter: Option<String>,
}

/// Runs the tests; an error if any fails, does not compile, or none ran.
pub(crate) fn run(args: &TestArgs) -> Result<()> {
    if !args.no_setup {
        setup::run()?;
    }
    let mut command = shell::cargo();
    command.args(["test", "--no-fail-fast"]).env("STONECHAT_MODELS", models::models_dir()?);
    if args.package.is_empty() {
        command.arg("--workspace");
    }
    for package in &args.package {
        command.args(["--package", package]);
    }
    command.arg("--").arg("--show-output").args(&args.filter);
    let text = shell::describe(&command);
    println!("$ {text}");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start `{text}`"))?;
    let stdout = child.stdout.take().context("the test run has no standard output")?;
    let mut report = Report::default();
    for line in BufReader::new(stdout).split(b'\n') {
        let line = line.context("cannot read the output of the test run")?;
        let line = String::from_utf8_lossy(&line);
        if report.take(&line) {
            println!("{line}");
        }
    }
    let status = child.wait()?;
    let Totals { passed, failed, skipped } = report.totals;
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    if !status.success() || failed > 0 {
        bail!("`{text}` failed: {status}");
    }
    if passed == 0 && args.filter.is_none() {
        bail!("no test ran");
    }
    Ok(())
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Totals {
    passed: usize,
    failed: usize,
    skipped: usize,
}

/// Reads the output of libtest's default format line by line.
#[derive(Debug, Default)]
struct Report {
    totals: Totals,
    /// Inside the list of what passing tests printed.
    in_successes: bool,
    /// The test being listed has already counted as skipped.
    counted: bool,
    /// Skipped tests of this test program, which its result line counts as passed.
    skipped: usize,
}

impl Report {
    /// Counts `line`; returns whether it is to be shown.
    fn take(&mut self, line: &str) -> bool {
        if let Some(result) = line.strip_prefix("test result: ") {
            self.finish_program(result);
            return true;
        }
        match line {
            "successes:" => self.in_successes = true,
            "failures:" => self.in_successes = false,
            _ => {}
        }
        if !self.in_successes {
            return true;
        }
        if line.starts_with("---- ") && line.ends_with(" stdout ----") {
            self.counted = false;
        }
        if !line.starts_with("SKIPPED ") {
            return false;
        }
        if !self.counted {
            self.skipped += 1;
        }
        self.counted = true;
        true
    }

    fn finish_program(&mut self, result: &str) {
        let count = |word: &str| {
            result
                .split(['.', ';'])
                .find_map(|field| field.trim().strip_suffix(word)?.trim().parse::<usize>().ok())
                .unwrap_or(0)
        };
        self.totals.passed += count("passed").saturating_sub(self.skipped);
        self.totals.failed += count("failed");
        self.totals.skipped += self.skipped + count("ignored");
        *self = Self { totals: std::mem::take(&mut self.totals), ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "running 4 tests
test a ... ok
test b ... ok
test c ... ignored, needs a GPU
test d ... FAILED

successes:

---- a stdout ----
noise
---- b stdout ----
SKIPPED b: no model
SKIPPED b: no device

successes:
    a
    b

failures:

---- d stdout ----
SKIPPED is not counted here
failures:
    d

test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.02s

running 1 test
test e ... ok

successes:

successes:
    e

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 7 filtered out; finished in 0.00s
";

    #[test]
    fn totals_are_summed_and_noise_is_hidden() {
        let mut report = Report::default();
        let shown: Vec<&str> = OUTPUT.lines().filter(|line| report.take(line)).collect();
        assert_eq!(report.totals, Totals { passed: 2, failed: 1, skipped: 2 });
        assert!(!shown.contains(&"noise"));
        assert!(shown.contains(&"SKIPPED b: no model"));
        assert!(shown.contains(&"---- d stdout ----"));
        assert!(shown.contains(&"test e ... ok"));
    }
}
