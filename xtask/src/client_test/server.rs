//! The server of a suite: its models, a key, metrics, a folder for slots, and Wyoming.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::suites::{SPEECH, Suite};
use crate::server_process::{ServerProcess, free_port, is_healthy};
use crate::{models, scripted_model, shell};

/// Key that the server is started with.
pub(super) const KEY: &str = "client-test-key";
/// Time to load the models.
const START_TIME: Duration = Duration::from_secs(120);

/// A running server and how clients reach it.
#[derive(Debug)]
pub(super) struct Served {
    pub(super) process: ServerProcess,
    url: String,
    wyoming: String,
    program: PathBuf,
}

impl Served {
    /// Starts `program` with the models of a suite and the scripted one.
    pub(super) fn start(program: &Path, suite: &Suite) -> Result<Self> {
        let scripted = scripted_model::file()?;
        let folder = folder();
        let slots = folder.join("slots");
        fs::create_dir_all(&slots).with_context(|| format!("cannot make {}", slots.display()))?;
        let (port, wyoming) = (free_port()?, free_port()?);
        let mut command = Command::new(program);
        command.arg("serve");
        for model in suite.models {
            command.args(["-m", model]);
        }
        command.arg("-m").arg(&scripted);
        command.args(["--ctx-size", &suite.n_ctx.to_string()]);
        command.args(["--api-key", KEY, "--metrics", "--slot-save-path"]).arg(&slots);
        command.args(["--host", "127.0.0.1", "--port", &port.to_string()]);
        if suite.models.contains(&SPEECH) {
            command.args(["--wyoming-port", &wyoming.to_string()]);
        }
        command.env("STONECHAT_MODELS", models::models_dir()?);
        let log = folder.join(format!("server-{}.log", suite.name));
        let mut process = ServerProcess::start(&mut command, &log)?;
        let url = format!("http://127.0.0.1:{port}");
        process.wait_until(START_TIME, || is_healthy(&url))?;
        let wyoming = format!("tcp://127.0.0.1:{wyoming}");
        Ok(Self { process, url, wyoming, program: program.to_owned() })
    }

    /// Adds the arguments of the checks.
    pub(super) fn describe(&self, checks: &mut Command, suite: &Suite) -> Result<()> {
        checks.args([&self.url, "--api-key", KEY, "--scripted-model", scripted_model::NAME]);
        let language = suite.models.iter().find(|name| **name != SPEECH);
        checks.args(["--model", language.unwrap_or(&scripted_model::NAME)]);
        if suite.models.contains(&SPEECH) {
            checks.args(["--audio-model", SPEECH, "--wyoming", &self.wyoming]);
        }
        checks.arg("--stonechat").arg(&self.program);
        checks.arg("--audio").arg(shell::workspace_root().join("test-data/audio"));
        checks.env("STONECHAT_MODELS", models::models_dir()?);
        Ok(())
    }
}

fn folder() -> PathBuf {
    shell::target_dir().join("client-test")
}
