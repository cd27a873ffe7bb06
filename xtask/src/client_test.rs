//! `cargo xtask client-test`: checks `stonechat serve` with unmodified clients. `cargo xtask test` ends in its default suites.
//!
//! | file | holds |
//! |---|---|
//! | `suites` | clients that are checked together |
//! | `install` | their packages |
//! | `server` | the server, one for each suite |
//!
//! The checks are in `crates/server/tests/python` and `crates/server/tests/node`. A suite whose packages or models cannot be
//! installed is skipped. `live-figures` measures: its checks print delays and word error rates, and fail beyond their targets.

mod install;
mod server;
mod suites;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::{load, models, shell};
use server::{KEY, Served};
use suites::Suite;

/// Options of `cargo xtask client-test`.
#[derive(Debug, clap::Args)]
pub(crate) struct ClientTestArgs {
    /// Run only this suite, or `all`; may be repeated [default: openai, anthropic and ollama]
    #[arg(long, value_name = "NAME")]
    suite: Vec<String>,
    /// Program of stonechat [default: release build of this tree]
    #[arg(long, value_name = "FILE")]
    stonechat: Option<PathBuf>,
    /// Check a running server instead
    #[arg(long, conflicts_with = "stonechat", requires = "model")]
    url: Option<String>,
    /// API key of the running server
    #[arg(long, requires = "url", default_value = KEY)]
    api_key: String,
    /// Language model of the running server, as /v1/models names it
    #[arg(long, requires = "url")]
    model: Option<String>,
    /// Speech model of the running server; without it the checks of audio are skipped
    #[arg(long, requires = "url")]
    audio_model: Option<String>,
    /// Only checks whose names contain this text; repeatable
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Folder of recordings with a manifest.jsonl, for live-figures [default: that of `STONECHAT_CORPUS`]
    #[arg(long, value_name = "DIR")]
    corpus: Option<PathBuf>,
    /// Print passed checks and tracebacks
    #[arg(short, long)]
    verbose: bool,
}

/// Passed, failed and skipped checks; a skipped suite counts as one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) skipped: usize,
}

impl Counts {
    const SKIPPED: Self = Self { passed: 0, failed: 0, skipped: 1 };

    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// Runs the checks that are asked for; an error if one fails.
pub(crate) fn run(args: &ClientTestArgs) -> Result<()> {
    let suites = suites::named(&args.suite).map_err(anyhow::Error::msg)?;
    let program = match args.url {
        Some(_) => None,
        None => Some(load::stonechat(args.stonechat.as_deref())?),
    };
    let counts = run_suites(&suites, |suite, checks| {
        for text in &args.only {
            checks.args(["--only", text]);
        }
        checks.args(args.verbose.then_some("--verbose"));
        if let Some(corpus) = &args.corpus {
            checks.arg("--corpus").arg(corpus);
        }
        if let Some(program) = &program {
            return check_server(program, suite, checks);
        }
        checks.args(&args.url).args(["--api-key", &args.api_key]);
        for (name, model) in [("--model", &args.model), ("--audio-model", &args.audio_model)] {
            if let Some(model) = model {
                checks.args([name, model]);
            }
        }
        count(checks)
    })?;
    ensure!(counts.failed == 0, "{} checks failed", counts.failed);
    ensure!(counts.passed > 0, "no check ran");
    Ok(())
}

/// Runs the default suites on servers of `program`.
pub(crate) fn run_default(program: &Path) -> Result<Counts> {
    let suites = suites::named(&[]).map_err(anyhow::Error::msg)?;
    run_suites(&suites, |suite, checks| check_server(program, suite, checks))
}

/// Runs suites one after the other and prints their sum.
fn run_suites(
    suites: &[&Suite],
    check: impl Fn(&Suite, &mut Command) -> Result<Counts>,
) -> Result<Counts> {
    let mut sum = Counts::default();
    for suite in suites {
        println!("\n== client-test {}", suite.name);
        let installed = models::install(suite.models).and_then(|()| install::command(suite));
        let counts = match installed {
            Ok(mut checks) => check(suite, &mut checks)?,
            Err(error) => {
                println!("SKIPPED client-test {}: {error:#}", suite.name);
                Counts::SKIPPED
            }
        };
        sum.add(counts);
    }
    let Counts { passed, failed, skipped } = sum;
    println!("client-test: {passed} passed, {failed} failed, {skipped} skipped");
    Ok(sum)
}

/// Starts a server for a suite and runs the checks on it.
fn check_server(program: &Path, suite: &Suite, checks: &mut Command) -> Result<Counts> {
    let mut server = Served::start(program, suite)?;
    server.describe(checks, suite)?;
    let counts = count(checks)?;
    let process = &mut server.process;
    if let Some(status) = process.ended() {
        bail!("the server ended with {status}: {}", process.last_line());
    }
    if counts.failed > 0 {
        println!("log of the server: {}", process.log.display());
    }
    Ok(counts)
}

/// Runs the checks and passes their output on; the last line has their numbers.
fn count(checks: &mut Command) -> Result<Counts> {
    let shown = shell::describe(checks);
    println!("$ {shown}");
    let child = checks.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut child = child.with_context(|| format!("cannot start `{shown}`"))?;
    let mut last = String::new();
    for line in BufReader::new(child.stdout.take().context("no output")?).lines() {
        last = line?;
        println!("{last}");
    }
    let status = child.wait()?;
    counts_of(&last).with_context(|| format!("`{shown}` ended with {status}"))
}

/// Numbers of the line `N passed, M failed, K skipped`.
fn counts_of(line: &str) -> Option<Counts> {
    let mut parts = line.split(", ");
    let mut number = |name| parts.next()?.strip_suffix(name)?.parse().ok();
    let counts = Counts {
        passed: number(" passed")?,
        failed: number(" failed")?,
        skipped: number(" skipped")?,
    };
    parts.next().is_none().then_some(counts)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: ClientTestArgs,
    }

    fn is_valid(args: &[&str]) -> bool {
        Cli::try_parse_from([&["client-test"], args].concat()).is_ok()
    }

    #[test]
    fn a_running_server_has_a_url_and_a_model() {
        assert!(is_valid(&[]));
        assert!(is_valid(&["--suite", "live", "--suite", "sdk"]));
        assert!(is_valid(&["--suite", "live-figures", "--corpus", "recordings"]));
        assert!(is_valid(&["--stonechat", "x", "--only", "chat", "--only", "audio"]));
        assert!(is_valid(&["--url", "http://h:1", "--model", "m", "--api-key", "k"]));
        assert!(!is_valid(&["--url", "http://h:1"]));
        assert!(!is_valid(&["--model", "m"]));
        assert!(!is_valid(&["--url", "http://h:1", "--model", "m", "--stonechat", "x"]));
    }

    #[test]
    fn the_last_line_has_the_numbers() {
        let counts = Counts { passed: 150, failed: 2, skipped: 1 };
        assert_eq!(counts_of("150 passed, 2 failed, 1 skipped"), Some(counts));
        let others = [
            "",
            "FAILED chat.a: 3 failed",
            "150 passed",
            "a passed, 0 failed",
            "1 passed, 2 failed",
        ];
        for line in others {
            assert_eq!(counts_of(line), None, "{line}");
        }
    }

    #[test]
    fn suites_that_cannot_be_installed_are_skipped() {
        let suite = Suite { models: &["no-such-model"], ..*suites::named(&[]).unwrap()[0] };
        let counts = run_suites(&[&suite], |_, _| panic!("a suite without its model ran"));
        assert_eq!(counts.unwrap(), Counts::SKIPPED);
    }
}
