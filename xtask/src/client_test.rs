//! `cargo xtask client-test`: checks `stonechat serve` with OpenAI's Python client. `cargo xtask test` ends in it.
//!
//! The checks are in `crates/server/tests/python`. The server runs on a free port with a language and a speech model, an
//! API key, metrics and a folder for slots.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::server_process::{ServerProcess, free_port, is_healthy};
use crate::{load, models, shell, venv};

const FOLDER: &str = "crates/server/tests/python";
/// Key that the server is started with.
const KEY: &str = "client-test-key";
/// Language and speech model.
const MODELS: [&str; 2] = ["smollm2-135m", "base"];
/// Time to load both models.
const START_TIME: Duration = Duration::from_secs(120);

/// Options of `cargo xtask client-test`.
#[derive(Debug, clap::Args)]
pub(crate) struct ClientTestArgs {
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
    /// Print passed checks and tracebacks
    #[arg(short, long)]
    verbose: bool,
}

/// Passed and failed checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
}

/// Runs the checks that are asked for; an error if one fails.
pub(crate) fn run(args: &ClientTestArgs) -> Result<()> {
    let mut checks = client(&python()?);
    for text in &args.only {
        checks.args(["--only", text]);
    }
    checks.args(args.verbose.then_some("--verbose"));
    let counts = if let (Some(url), Some(model)) = (&args.url, &args.model) {
        checks.arg(url).args(["--api-key", &args.api_key, "--model", model]);
        if let Some(model) = &args.audio_model {
            checks.args(["--audio-model", model]);
        }
        count(&mut checks)?
    } else {
        let program = load::stonechat(args.stonechat.as_deref())?;
        models::install(&MODELS)?;
        check_server(&program, &mut checks)?
    };
    ensure!(counts.failed == 0, "{} checks failed", counts.failed);
    ensure!(counts.passed > 0, "no check ran");
    Ok(())
}

/// Runs all checks on a server of `program`, whose models are installed.
pub(crate) fn run_all(program: &Path, python: &Path) -> Result<Counts> {
    check_server(program, &mut client(python))
}

/// The Python that has the client installed.
pub(crate) fn python() -> Result<PathBuf> {
    let path = shell::workspace_root().join(FOLDER).join("requirements.txt");
    let requirements =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let requirements: Vec<&str> = requirements.lines().collect();
    Ok(venv::programs("client-test", &requirements, &[])?.join("python"))
}

/// The script of the checks.
fn client(python: &Path) -> Command {
    let mut checks = shell::program(python);
    checks.arg(shell::workspace_root().join(FOLDER).join("client.py"));
    checks
}

/// Starts a server of both models and runs the checks on it.
fn check_server(program: &Path, checks: &mut Command) -> Result<Counts> {
    let (url, wyoming, mut server) = start(program)?;
    let [model, audio_model] = MODELS;
    checks.args([&url, "--api-key", KEY, "--model", model, "--audio-model", audio_model]);
    checks.args(["--wyoming", &wyoming]);
    let counts = count(checks)?;
    if let Some(status) = server.ended() {
        bail!("the server ended with {status}: {}", server.last_line());
    }
    if counts.failed > 0 {
        println!("log of the server: {}", server.log.display());
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

/// Numbers of the line `N passed, M failed`.
fn counts_of(line: &str) -> Option<Counts> {
    let (passed, failed) = line.strip_suffix(" failed")?.split_once(" passed, ")?;
    Some(Counts { passed: passed.parse().ok()?, failed: failed.parse().ok()? })
}

/// Starts a server of both models; its URL, and the URI of its Wyoming.
fn start(program: &Path) -> Result<(String, String, ServerProcess)> {
    let folder = shell::target_dir().join("client-test");
    let slots = folder.join("slots");
    fs::create_dir_all(&slots).with_context(|| format!("cannot make {}", slots.display()))?;
    let (port, wyoming) = (free_port()?, free_port()?);
    let mut command = Command::new(program);
    command.args(["serve", "-m", MODELS[0], "-m", MODELS[1], "--api-key", KEY, "--metrics"]);
    command.arg("--slot-save-path").arg(&slots);
    command.args(["--host", "127.0.0.1", "--port", &port.to_string()]);
    command.args(["--wyoming-port", &wyoming.to_string()]);
    command.env("STONECHAT_MODELS", models::models_dir()?);
    let mut server = ServerProcess::start(&mut command, &folder.join("server.log"))?;
    let url = format!("http://127.0.0.1:{port}");
    server.wait_until(START_TIME, || is_healthy(&url))?;
    Ok((url, format!("tcp://127.0.0.1:{wyoming}"), server))
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
        assert!(is_valid(&["--stonechat", "x", "--only", "chat", "--only", "audio"]));
        assert!(is_valid(&["--url", "http://h:1", "--model", "m", "--api-key", "k"]));
        assert!(!is_valid(&["--url", "http://h:1"]));
        assert!(!is_valid(&["--model", "m"]));
        assert!(!is_valid(&["--url", "http://h:1", "--model", "m", "--stonechat", "x"]));
    }

    #[test]
    fn the_last_line_has_the_numbers() {
        let counts = Counts { passed: 150, failed: 2 };
        assert_eq!(counts_of("150 passed, 2 failed"), Some(counts));
        for line in ["", "FAILED chat.a: 3 failed", "150 passed", "a passed, 0 failed"] {
            assert_eq!(counts_of(line), None, "{line}");
        }
    }

    #[test]
    fn requirements_are_pinned() {
        let path = shell::workspace_root().join(FOLDER).join("requirements.txt");
        let text = fs::read_to_string(path).unwrap();
        assert!(text.lines().any(|line| line.starts_with("openai==")), "{text}");
        assert!(text.lines().all(|line| line.contains("==")), "{text}");
    }
}
