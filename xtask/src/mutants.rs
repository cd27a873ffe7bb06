//! `cargo xtask mutants`: mutation tests of the decoding rules and the samplers with cargo-mutants.
//!
//! Each mutant is one changed expression or one replaced function body. It is caught if a test of its package fails. The
//! others are equivalent to the source or show a missing test.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use walkdir::WalkDir;

use crate::shell;

/// Version of cargo-mutants: others generate other mutants.
const VERSION: &str = "27.1.0";

/// Seconds for the tests of one mutant. An endless loop is ended after them.
const TIMEOUT_S: &str = "20";

/// Sources that the same tests check.
struct Target {
    name: &'static str,
    /// Arguments of `cargo test`: package, features, tests.
    cargo: &'static [&'static str],
    /// Tests that take long and check other files.
    skipped: &'static [&'static str],
    files: &'static [&'static str],
}

const TARGETS: [Target; 4] = [
    Target {
        name: "nn",
        cargo: &["--package=stonechat-nn", "--lib"],
        skipped: &[],
        files: &["crates/nn/src/pages.rs", "crates/nn/src/step.rs"],
    },
    Target {
        name: "sampling",
        cargo: &["--package=stonechat-sampling", "--lib"],
        skipped: &[],
        files: &[
            "crates/sampling/src/adaptive_p.rs",
            "crates/sampling/src/breakers.rs",
            "crates/sampling/src/candidates.rs",
            "crates/sampling/src/dry.rs",
            "crates/sampling/src/entropy.rs",
            "crates/sampling/src/eta.rs",
            "crates/sampling/src/healing.rs",
            "crates/sampling/src/kind.rs",
            "crates/sampling/src/logits.rs",
            "crates/sampling/src/min_p.rs",
            "crates/sampling/src/mirostat.rs",
            "crates/sampling/src/mt19937.rs",
            "crates/sampling/src/options.rs",
            "crates/sampling/src/penalties.rs",
            "crates/sampling/src/rng.rs",
            "crates/sampling/src/sampler.rs",
            "crates/sampling/src/tail_free.rs",
            "crates/sampling/src/temperature.rs",
            "crates/sampling/src/token_values.rs",
            "crates/sampling/src/top_k.rs",
            "crates/sampling/src/top_n_sigma.rs",
            "crates/sampling/src/top_p.rs",
            "crates/sampling/src/typical.rs",
            "crates/sampling/src/xtc.rs",
        ],
    },
    Target {
        name: "grammar",
        cargo: &["--package=stonechat-sampling", "--features=grammar", "--lib"],
        skipped: &[],
        files: &[
            "crates/sampling/src/gbnf.rs",
            "crates/sampling/src/gbnf/analysis.rs",
            "crates/sampling/src/gbnf/char_set.rs",
            "crates/sampling/src/gbnf/lark.rs",
            "crates/sampling/src/gbnf/parse.rs",
            "crates/sampling/src/grammar.rs",
            "crates/sampling/src/grammar_source.rs",
        ],
    },
    Target {
        name: "whisper",
        cargo: &["--package=stonechat-whisper", "--lib"],
        skipped: &["live::", "align::"],
        files: &[
            "crates/whisper/src/chunk.rs",
            "crates/whisper/src/fallback.rs",
            "crates/whisper/src/loops.rs",
            "crates/whisper/src/prompt.rs",
            "crates/whisper/src/rules.rs",
            "crates/whisper/src/sampling.rs",
            "crates/whisper/src/search.rs",
            "crates/whisper/src/window.rs",
        ],
    },
];

/// Options of `cargo xtask mutants`.
#[derive(Debug, clap::Args)]
pub(crate) struct MutantsArgs {
    /// Source files to mutate; each file of the samplers, the pages and Whisper's rules without one
    files: Vec<String>,
    /// Print the files and their mutants, and run nothing
    #[arg(long)]
    list: bool,
}

/// Tests the mutants of each file; prints a table of the results and the mutants that are not caught, and writes both to
/// `mutants/results.md` in the target folder.
pub(crate) fn run(args: &MutantsArgs) -> Result<()> {
    let known = || TARGETS.iter().flat_map(|target| target.files);
    for file in &args.files {
        ensure!(
            known().any(|name| name == file),
            "no mutants of {file:?}: expected one of\n{}",
            known().copied().collect::<Vec<_>>().join("\n")
        );
    }
    let program = installed()?;
    let folder = shell::target_dir().join("mutants");
    let tree = folder.join("tree");
    copy_sources(&tree)?;
    let mut results = BTreeMap::new();
    for target in &TARGETS {
        let chosen = |file: &&&str| args.files.is_empty() || args.files.iter().any(|f| f == **file);
        let files: Vec<&str> = target.files.iter().filter(chosen).copied().collect();
        if files.is_empty() {
            continue;
        }
        let mut mutants = Command::new(&program);
        mutants.current_dir(&tree).args([
            "mutants",
            "--workspace",
            "--in-place",
            "--timeout",
            TIMEOUT_S,
        ]);
        mutants.args(target.cargo.iter().flat_map(|arg| ["--cargo-arg", arg]));
        mutants.args(files.iter().flat_map(|file| ["--file", file]));
        // Debug information takes a third of the time of a build. No models: what is installed must not decide.
        mutants.env("CARGO_TARGET_DIR", folder.join("build")).env_remove("STONECHAT_MODELS");
        mutants.env("CARGO_PROFILE_TEST_DEBUG", "0").env("CARGO_PROFILE_DEV_DEBUG", "0");
        if args.list {
            shell::run(mutants.arg("--list"))?;
            continue;
        }
        let output = folder.join(target.name);
        mutants.arg("--output").arg(&output);
        // The first `--` ends the options of cargo-mutants, the second those of cargo.
        mutants.args(["--", "--"]).args(target.skipped.iter().flat_map(|test| ["--skip", test]));
        println!("$ {}", shell::describe(&mutants));
        let status = mutants.status()?;
        // 2: a mutant was not caught; 3: a test ran out of time.
        ensure!(matches!(status.code(), Some(0 | 2 | 3)), "cargo-mutants failed: {status}");
        results.extend(files.iter().map(|file| (*file, Counts::default())));
        count(&read(&output.join("mutants.out/outcomes.json"))?, &mut results);
    }
    if !args.list {
        let table = table(&results);
        print!("{table}");
        fs::write(folder.join("results.md"), table)?;
    }
    Ok(())
}

/// The program of cargo-mutants, installed into the target folder if it is not there.
fn installed() -> Result<PathBuf> {
    let root = shell::target_dir().join("cargo-mutants");
    let program = root.join("bin").join(format!("cargo-mutants{}", env::consts::EXE_SUFFIX));
    let version = shell::output(Command::new(&program).args(["mutants", "--version"]));
    if !version.is_ok_and(|version| version.trim().ends_with(VERSION)) {
        let mut install = shell::cargo();
        // cargo-mutants waits for the compiler: its own speed does not matter.
        install.args(["install", "--locked", "--debug", "--force", "--root"]).arg(&root);
        shell::run(install.arg(format!("cargo-mutants@{VERSION}")))?;
    }
    Ok(program)
}

/// Makes `tree` a copy of the sources, to mutate. Only files that differ are written: cargo builds by time of change, and
/// a mutant that was restored is newer than its build.
fn copy_sources(tree: &Path) -> Result<()> {
    let root = shell::workspace_root();
    let mut git = shell::program("git");
    let list =
        shell::output(git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]))?;
    let names = list.split_terminator('\0').map(Path::new);
    // The index has files that were removed since.
    let names: HashSet<&Path> = names.filter(|name| root.join(name).is_file()).collect();
    fs::create_dir_all(tree)?;
    for entry in WalkDir::new(tree) {
        let entry = entry?;
        let is_listed = entry.path().strip_prefix(tree).is_ok_and(|name| names.contains(name));
        if entry.file_type().is_file() && !is_listed {
            fs::remove_file(entry.path())?;
        }
    }
    for name in names {
        let source =
            fs::read(root.join(name)).with_context(|| format!("cannot read {}", name.display()))?;
        let copy = tree.join(name);
        if !fs::read(&copy).is_ok_and(|old| old == source) {
            fs::create_dir_all(copy.parent().context("a path in a folder")?)?;
            fs::write(&copy, source)?;
        }
    }
    Ok(())
}

/// Results of the mutants of a file.
#[derive(Debug, Default, PartialEq)]
struct Counts {
    caught: usize,
    timeout: usize,
    /// Mutants that no test fails for.
    missed: Vec<String>,
}

impl Counts {
    fn viable(&self) -> usize {
        self.caught + self.timeout + self.missed.len()
    }
}

/// `outcomes.json` of cargo-mutants.
#[derive(Debug, Deserialize)]
struct Outcomes {
    outcomes: Vec<Outcome>,
}

#[derive(Debug, Deserialize)]
struct Outcome {
    scenario: Scenario,
    summary: Summary,
}

#[derive(Debug, Deserialize)]
enum Scenario {
    Baseline,
    Mutant { name: String, file: String },
}

#[derive(Debug, Clone, Copy, Deserialize)]
enum Summary {
    Success,
    CaughtMutant,
    MissedMutant,
    Unviable,
    Timeout,
    Failure,
}

fn read(path: &Path) -> Result<Outcomes> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("cannot parse {}", path.display()))
}

fn count(outcomes: &Outcomes, results: &mut BTreeMap<&str, Counts>) {
    for outcome in &outcomes.outcomes {
        let Scenario::Mutant { name, file } = &outcome.scenario else { continue };
        let Some(counts) = results.get_mut(file.as_str()) else { continue };
        match outcome.summary {
            Summary::CaughtMutant => counts.caught += 1,
            Summary::MissedMutant => counts.missed.push(name.clone()),
            Summary::Timeout => counts.timeout += 1,
            // Mutants that do not compile, and the sources as they are.
            Summary::Unviable | Summary::Success | Summary::Failure => {}
        }
    }
}

/// Markdown: a row a file, the totals, and the mutants that are not caught. A timeout is caught: its test would not end.
fn table(results: &BTreeMap<&str, Counts>) -> String {
    let mut table = String::from(
        "| file | viable | caught | timeout | missed | caught % |\n|---|--:|--:|--:|--:|--:|\n",
    );
    let mut row = |name: &str, [caught, timeout, missed]: [usize; 3]| {
        let viable = caught + timeout + missed;
        let percent = 100.0 * (caught + timeout) as f64 / viable.max(1) as f64;
        _ = writeln!(
            table,
            "| {name} | {viable} | {caught} | {timeout} | {missed} | {percent:.0} |"
        );
    };
    let mut sums = [0; 3];
    for (file, counts) in results.iter().filter(|(_, counts)| counts.viable() > 0) {
        let figures = [counts.caught, counts.timeout, counts.missed.len()];
        sums.iter_mut().zip(figures).for_each(|(sum, n)| *sum += n);
        row(file, figures);
    }
    row("all", sums);
    for mutant in results.values().flat_map(|counts| &counts.missed) {
        _ = writeln!(table, "- {mutant}");
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutants_are_counted_by_file() {
        let mutant = |file: &str, summary: &str| {
            format!(
                r#"{{"scenario": {{"Mutant": {{"name": "{file}:1:2: m", "package": "p", "file": "{file}"}}}}, "summary": "{summary}"}}"#
            )
        };
        let outcomes = [
            r#"{"scenario": "Baseline", "summary": "Success", "phase_results": []}"#.to_owned(),
            mutant("a.rs", "CaughtMutant"),
            mutant("a.rs", "Timeout"),
            mutant("a.rs", "MissedMutant"),
            mutant("a.rs", "Unviable"),
            mutant("c.rs", "CaughtMutant"),
        ];
        let text = format!(r#"{{"outcomes": [{}], "missed": 1}}"#, outcomes.join(","));
        let mut results =
            BTreeMap::from([("a.rs", Counts::default()), ("b.rs", Counts::default())]);
        count(&serde_json::from_str(&text).unwrap(), &mut results);
        let missed = vec!["a.rs:1:2: m".to_owned()];
        assert_eq!(results["a.rs"], Counts { caught: 1, timeout: 1, missed });
        let table = table(&results);
        let rows: Vec<&str> = table.lines().skip(2).collect();
        let row = |name: &str| format!("| {name} | 3 | 1 | 1 | 1 | 67 |");
        assert_eq!(rows, [row("a.rs"), row("all"), "- a.rs:1:2: m".to_owned()]);
    }

    #[test]
    fn every_listed_file_exists() {
        for file in TARGETS.iter().flat_map(|target| target.files) {
            assert!(shell::workspace_root().join(file).is_file(), "{file}");
        }
    }
}
