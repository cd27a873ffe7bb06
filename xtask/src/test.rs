//! `cargo xtask test`: sets up, runs every test of the workspace and sums the totals. The checks of `client-test`, on the
//! program that the tests have built, come last.
//!
//! Test programs run two at a time, the slow ones first. Their output is passed on when one ends, except what passing tests
//! printed. Of that only lines starting in `SKIPPED ` stay: a test that needs an absent device or model prints one, and
//! counts as skipped here although the test program calls it passed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::{client_test, in_parallel, models, setup, shell};

/// Tells testkit to run every instruction set and kernel variant.
const ALL_VARIABLE: &str = "STONECHAT_TEST_ALL";
/// Programs at a time: tests of kernels use two threads themselves.
const N_WORKERS: usize = 2;
/// Names of slow programs, which start first.
const SLOW: [&str; 10] = [
    "wgpu",
    "conformance",
    "cli",
    "same_model",
    "batches",
    "golden",
    "stonechat_whisper",
    "windows",
    "requests",
    "prefix_cache",
];

/// Options of `cargo xtask test`.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct TestArgs {
    /// Test only this package; may be repeated
    #[arg(short, long)]
    package: Vec<String>,
    /// Do not install the models first
    #[arg(long)]
    no_setup: bool,
    /// Also run the slow variants: every instruction set and kernel variant, long clips
    #[arg(long)]
    all: bool,
    /// Run only tests whose names contain this
    filter: Option<String>,
}

/// Runs the tests; an error if any fails, does not compile, or none ran.
pub(crate) fn run(args: &TestArgs) -> Result<()> {
    if !args.no_setup {
        setup::run()?;
    }
    let mut packages = Vec::new();
    for package in &args.package {
        packages.extend(["--package", package]);
    }
    if packages.is_empty() {
        packages.push("--workspace");
    }
    let Compiled { programs, has_library, stonechat } = compile(&packages)?;
    let models = models::models_dir()?;
    let all = in_parallel(N_WORKERS, programs, |program| {
        let mut command = Command::new(&program.path);
        command.current_dir(&program.folder).env("STONECHAT_MODELS", &models);
        if args.all {
            command.env(ALL_VARIABLE, "1");
        }
        command.arg("--show-output").args(&args.filter);
        let report = report(&mut command, &program.name)?;
        print!("{}", report.shown);
        Ok(report.totals)
    })?;
    let mut totals = Totals::default();
    all.iter().for_each(|one| totals.add(one));
    if has_library {
        let mut doc = shell::cargo_with_checks();
        doc.args(["test", "--doc", "--release"]).args(&packages).arg("--").arg("--show-output");
        let doc = report(doc.args(&args.filter), "documentation")?;
        print!("{}", doc.shown);
        totals.add(&doc.totals);
    }
    // The filter is of the names of Rust's tests.
    if let Some(stonechat) = stonechat.filter(|_| args.filter.is_none()) {
        totals.add(&check_client(&stonechat));
    }
    let Totals { passed, failed, skipped } = totals;
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    if failed > 0 {
        bail!("{failed} tests failed");
    }
    if passed == 0 && args.filter.is_none() {
        bail!("no test ran");
    }
    Ok(())
}

/// A compiled test program.
#[derive(Debug)]
struct Program {
    name: String,
    path: PathBuf,
    /// Working directory: the folder of its package, as with cargo.
    folder: PathBuf,
}

/// Executables of a build.
#[derive(Debug, Default)]
struct Compiled {
    /// The test programs, the slow ones first.
    programs: Vec<Program>,
    /// Whether one of them is a library's, which may have tests in its documentation.
    has_library: bool,
    /// The command line, if its package was selected.
    stonechat: Option<PathBuf>,
}

/// Compiles the tests of `packages`.
fn compile(packages: &[&str]) -> Result<Compiled> {
    let mut cargo = shell::cargo_with_checks();
    cargo.args(["test", "--no-run", "--release", "--message-format", "json-render-diagnostics"]);
    cargo.args(packages);
    println!("$ {}", shell::describe(&cargo));
    let output = cargo.stderr(Stdio::inherit()).output().context("cannot start cargo")?;
    if !output.status.success() {
        bail!("the tests do not compile");
    }
    let mut compiled = Compiled::default();
    for artifact in String::from_utf8_lossy(&output.stdout).lines().filter_map(artifact) {
        match artifact {
            Artifact::Test { program, is_library } => {
                compiled.programs.push(program);
                compiled.has_library |= is_library;
            }
            Artifact::Stonechat(path) => compiled.stonechat = Some(path),
        }
    }
    compiled.programs.sort_by_key(|program| {
        SLOW.iter().position(|name| *name == program.name).unwrap_or(SLOW.len())
    });
    Ok(compiled)
}

/// An executable of one of cargo's messages.
#[derive(Debug)]
enum Artifact {
    Test { program: Program, is_library: bool },
    Stonechat(PathBuf),
}

/// The executable of one of cargo's messages, if it is needed.
fn artifact(message: &str) -> Option<Artifact> {
    #[derive(Deserialize)]
    struct Message {
        executable: PathBuf,
        manifest_path: PathBuf,
        profile: Profile,
        target: Target,
    }
    #[derive(Deserialize)]
    struct Profile {
        test: bool,
    }
    #[derive(Deserialize)]
    struct Target {
        name: String,
        kind: Vec<String>,
    }
    let Message { executable, manifest_path, profile, target } =
        serde_json::from_str(message).ok()?;
    let is_kind = |name: &str| target.kind.iter().any(|kind| kind == name);
    let is_library = is_kind("lib");
    if profile.test {
        let folder = manifest_path.parent()?.to_path_buf();
        let program = Program { name: target.name, path: executable, folder };
        return Some(Artifact::Test { program, is_library });
    }
    (target.name == "stonechat" && is_kind("bin")).then_some(Artifact::Stonechat(executable))
}

/// The checks of `client-test` as tests; a suite without its packages is one skipped test.
fn check_client(stonechat: &Path) -> Totals {
    match client_test::run_default(stonechat) {
        Ok(client_test::Counts { passed, failed, skipped }) => Totals { passed, failed, skipped },
        Err(error) => {
            println!("FAILED client-test: {error:#}");
            Totals { failed: 1, ..Totals::default() }
        }
    }
}

/// Runs a test program to its end.
fn report(command: &mut Command, name: &str) -> Result<Report> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot start the tests `{name}`"))?;
    let mut report = Report { shown: format!("\n== {name}\n"), ..Report::default() };
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        if report.take(line) {
            report.shown.push_str(line);
            report.shown.push('\n');
        }
    }
    if !output.status.success() {
        report.shown.push_str(&String::from_utf8_lossy(&output.stderr));
        report.shown.push_str(&format!("`{name}` ended with {}\n", output.status));
        // A program that crashed has no result line.
        report.totals.failed = report.totals.failed.max(1);
    }
    Ok(report)
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Totals {
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl Totals {
    fn add(&mut self, other: &Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// Reads the output of libtest's default format line by line.
#[derive(Debug, Default)]
struct Report {
    totals: Totals,
    /// The lines to show.
    shown: String,
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
        let (totals, shown) = (std::mem::take(&mut self.totals), std::mem::take(&mut self.shown));
        *self = Self { totals, shown, ..Self::default() };
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
    fn programs_are_read_from_cargo() {
        let message = |test: bool, name: &str, kind: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","executable":"/t/a-1","manifest_path":"/p/a/Cargo.toml","profile":{{"test":{test}}},"target":{{"name":"{name}","kind":["{kind}"]}}}}"#
            )
        };
        let Some(Artifact::Test { program, is_library: true }) =
            artifact(&message(true, "a", "lib"))
        else {
            panic!("no test program");
        };
        assert_eq!((program.name.as_str(), program.folder.to_str()), ("a", Some("/p/a")));
        let found = artifact(&message(false, "stonechat", "bin"));
        assert!(matches!(found, Some(Artifact::Stonechat(path)) if path == Path::new("/t/a-1")));
        let test = artifact(&message(true, "stonechat", "bin"));
        assert!(matches!(test, Some(Artifact::Test { is_library: false, .. })));
        assert!(artifact(&message(false, "a", "lib")).is_none());
        assert!(artifact(&message(false, "stonechat", "lib")).is_none());
        assert!(artifact(r#"{"reason":"build-finished"}"#).is_none());
    }

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
