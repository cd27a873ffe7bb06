//! `cargo xtask ci`: every check, cheapest first, stopping at the first that fails.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;

use crate::{bench, cargo_deny, models, packaging, shell, test, tidy, web};

/// Options of `cargo xtask ci`.
#[derive(Debug, clap::Args)]
pub(crate) struct CiArgs {
    /// Leave out these steps
    #[arg(long, value_delimiter = ',', value_name = "STEP")]
    skip: Vec<Step>,
    /// Run only these steps
    #[arg(long, value_delimiter = ',', value_name = "STEP", conflicts_with = "skip")]
    only: Vec<Step>,
}

/// The steps in the order in which they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Step {
    Fmt,
    Tidy,
    Packaging,
    Clippy,
    Deny,
    Package,
    Page,
    Test,
    Doc,
    Smoke,
    Bench,
    Web,
}

/// Runs the steps that are asked for and prints how long each took.
pub(crate) fn run(args: &CiArgs) -> Result<()> {
    let chosen = |step: &&Step| {
        if args.only.is_empty() { !args.skip.contains(step) } else { args.only.contains(step) }
    };
    let mut timings: Vec<(Step, Duration)> = Vec::new();
    for &step in Step::value_variants().iter().filter(chosen) {
        println!("== {}", name(step));
        let start = Instant::now();
        let result = run_step(step);
        timings.push((step, start.elapsed()));
        if result.is_err() {
            print_timings(&timings);
        }
        result.with_context(|| format!("step {} failed", name(step)))?;
    }
    print_timings(&timings);
    Ok(())
}

fn name(step: Step) -> String {
    step.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

fn print_timings(timings: &[(Step, Duration)]) {
    println!("== timings");
    for (step, elapsed) in timings {
        println!("{:8} {:7.1} s", name(*step), elapsed.as_secs_f64());
    }
}

fn run_step(step: Step) -> Result<()> {
    match step {
        Step::Fmt => shell::run(shell::cargo().args(["fmt", "--all", "--check"])),
        Step::Tidy => tidy::run(),
        Step::Packaging => packaging::check(),
        Step::Clippy => shell::run(shell::cargo().args([
            "clippy",
            "--workspace",
            "--all-targets",
            // The tests compile everything with the assertions that this profile leaves out.
            "--release",
            "--",
            "-D",
            "warnings",
        ])),
        Step::Deny => cargo_deny::run(),
        // Packs what a release publishes. To compile the packages, too, takes ten minutes.
        Step::Package => shell::run(shell::cargo().args([
            "publish",
            "--workspace",
            "--dry-run",
            "--no-verify",
            "--allow-dirty",
            "--quiet",
        ])),
        Step::Page => web::run_page(&web::PageArgs { check: true }),
        Step::Test => test::run(&test::TestArgs::default()),
        Step::Doc => {
            let mut doc = shell::cargo();
            doc.args(["doc", "--workspace", "--no-deps", "--release"])
                .env("RUSTDOCFLAGS", "-D warnings");
            shell::run(&mut doc)
        }
        Step::Smoke => smoke(),
        Step::Bench => bench(),
        Step::Web => {
            let relaxed = vec![web::Binary::Relaxed];
            let test = Some(web::Tests::Short);
            web::run(&web::WebArgs { binary: relaxed, quick: true, link: false, test })?;
            // The code of `base` is that of `relaxed` and of these.
            use web::Binary::{BaseSpeech, Gpu, Scalar};
            let binary = vec![Scalar, Gpu];
            web::run(&web::WebArgs { binary, quick: false, link: true, test: None })?;
            // One packed binary, against its budget: all seven take half an hour.
            let binary = vec![BaseSpeech];
            web::run(&web::WebArgs { binary, quick: false, link: false, test: None })
        }
    }
}

/// Clippy has checked the benches; this links them, in the profile that the tests built, and runs the
/// matrix in little.
fn bench() -> Result<()> {
    shell::run(shell::cargo_with_checks().args(["bench", "--workspace", "--no-run"]))?;
    models::install(&["smollm2-135m"])?;
    let report = shell::target_dir().join("ci-bench.json");
    let mut xtask = shell::cargo_with_checks();
    xtask.args(["xtask", "bench", "--quick", "--json"]).arg(&report);
    shell::run(&mut xtask)?;
    bench::check(&report, &["load", "speech", "text", "kernel"])
}

/// The first command of the README, and the whole of what it prints.
const SMOKE_COMMAND: &str = "cargo run --release -- transcribe test-data/audio/quick_brown_fox.wav";
const SMOKE_OUTPUT: &str = "The quick brown fox jumps over the lazy dog.";

fn smoke() -> Result<()> {
    let readme = shell::workspace_root().join("README.md");
    let text = std::fs::read_to_string(&readme).context("cannot read README.md")?;
    ensure!(
        text.lines().any(|line| line.trim().trim_start_matches("$ ") == SMOKE_COMMAND),
        "README.md no longer has the line `{SMOKE_COMMAND}`, which this step runs"
    );
    // The program of the tests: it differs in its assertions alone, and another takes minutes to build.
    let mut command = shell::cargo_with_checks();
    command.args(SMOKE_COMMAND.split(' ').skip(1));
    println!("$ {}", shell::describe(&command));
    let printed = shell::output(&mut command)?;
    println!("{}", printed.trim_end());
    ensure!(
        printed.trim() == SMOKE_OUTPUT,
        "`{SMOKE_COMMAND}` printed {:?}, expected {SMOKE_OUTPUT:?}",
        printed.trim()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Packages of other projects with their features.
    fn packages(selection: &[&str]) -> BTreeSet<String> {
        let mut tree = shell::cargo();
        tree.args(["tree", "--offline", "--locked", "--prefix=none", "-f={p} {f}"]);
        let tree = shell::output(tree.args(selection)).unwrap();
        // `(*)` marks packages whose dependencies were listed before.
        let all = tree.lines().map(|line| line.trim_end_matches(" (*)").to_owned());
        all.filter(|line| !line.starts_with("stonechat")).collect()
    }

    /// Otherwise the steps `smoke` and `bench` compile again what has other features, and all that depends on it.
    #[test]
    fn dependencies_of_the_program_have_the_features_of_the_tests() {
        let program = packages(&["--package=stonechat-cli", "--edges=no-dev"]);
        let tests = packages(&["--workspace"]);
        assert!(program.len() > 100, "{program:?}");
        let others: Vec<_> = program.difference(&tests).collect();
        assert!(others.is_empty(), "not in the workspace: {others:?}");
    }

    /// A tag may move to other code; a commit cannot.
    #[test]
    fn actions_of_workflows_are_pinned_to_commits() {
        let folder = shell::workspace_root().join(".github/workflows");
        let mut n_actions = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            for line in text.lines().filter(|line| line.contains("uses:")) {
                let commit = line.split_once('@').and_then(|(_, rest)| rest.split(' ').next());
                let is_pinned = commit.is_some_and(|commit| {
                    commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit())
                });
                assert!(is_pinned, "{}: expected a commit, got `{line}`", path.display());
                n_actions += 1;
            }
        }
        assert!(n_actions > 0, "no action in the workflows");
    }
}
