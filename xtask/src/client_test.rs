//! `cargo xtask client-test`: checks `stonechat serve` with OpenAI's Python client.
//!
//! The checks are in `crates/server/tests/python`. The server runs on a free port with a language and a speech model, an
//! API key, metrics and a folder for slots.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

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
    /// Speech model of the running server; without it the checks of audio are left out
    #[arg(long, requires = "url")]
    audio_model: Option<String>,
    /// Only checks whose names contain this text; repeatable
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Print passed checks and tracebacks
    #[arg(short, long)]
    verbose: bool,
}

/// Starts the server and runs the checks; an error if one fails.
pub(crate) fn run(args: &ClientTestArgs) -> Result<()> {
    let folder = shell::workspace_root().join(FOLDER);
    let path = folder.join("requirements.txt");
    let requirements =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let requirements: Vec<&str> = requirements.lines().collect();
    let python = venv::programs("client-test", &requirements, &[])?.join("python");
    let mut checks = shell::program(python);
    checks.arg(folder.join("client.py"));
    for text in &args.only {
        checks.args(["--only", text]);
    }
    checks.args(args.verbose.then_some("--verbose"));
    if let (Some(url), Some(model)) = (&args.url, &args.model) {
        checks.arg(url).args(["--api-key", &args.api_key, "--model", model]);
        if let Some(model) = &args.audio_model {
            checks.args(["--audio-model", model]);
        }
        return shell::run(&mut checks);
    }
    let (url, mut server) = start(args)?;
    let [model, audio_model] = MODELS;
    checks.args([&url, "--api-key", KEY, "--model", model, "--audio-model", audio_model]);
    let result = shell::run(&mut checks);
    if let Some(status) = server.ended() {
        let last = server.last_line();
        return result.with_context(|| format!("the server ended with {status}: {last}"));
    }
    result.with_context(|| format!("the server's log is {}", server.log.display()))
}

/// Starts a server of both models; its URL.
fn start(args: &ClientTestArgs) -> Result<(String, ServerProcess)> {
    let program = load::stonechat(args.stonechat.as_deref())?;
    models::install(&MODELS)?;
    let folder = shell::target_dir().join("client-test");
    let slots = folder.join("slots");
    fs::create_dir_all(&slots).with_context(|| format!("cannot make {}", slots.display()))?;
    let port = free_port()?;
    let mut command = Command::new(program);
    command.args(["serve", "-m", MODELS[0], "-m", MODELS[1], "--api-key", KEY, "--metrics"]);
    command.arg("--slot-save-path").arg(&slots);
    command.args(["--host", "127.0.0.1", "--port", &port.to_string()]);
    command.env("STONECHAT_MODELS", models::models_dir()?);
    let mut server = ServerProcess::start(&mut command, &folder.join("server.log"))?;
    let url = format!("http://127.0.0.1:{port}");
    server.wait_until(START_TIME, || is_healthy(&url))?;
    Ok((url, server))
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
    fn requirements_are_pinned() {
        let path = shell::workspace_root().join(FOLDER).join("requirements.txt");
        let text = fs::read_to_string(path).unwrap();
        assert!(text.lines().any(|line| line.starts_with("openai==")), "{text}");
        assert!(text.lines().all(|line| line.contains("==")), "{text}");
    }
}
