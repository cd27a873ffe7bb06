//! Servers that the load generator starts: this engine's and llama.cpp's, with the same flags.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;

use super::client::Target;
use super::{Endpoint, LoadArgs, llama_server};
use crate::server_process::{ServerProcess, free_port, is_healthy};
use crate::shell;

/// Name of the model in requests: a server may list further ones.
const ALIAS: &str = "load";

/// A server that can be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Server {
    /// `stonechat serve` of this tree
    Stonechat,
    /// llama-server, built for this processor from the sources in llama-cpp-python
    #[value(name = "llama.cpp")]
    LlamaCpp,
}

impl Server {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stonechat => "stonechat",
            Self::LlamaCpp => "llama.cpp",
        }
    }

    /// The program; it is built where `args` names none.
    pub(super) fn program(self, args: &LoadArgs) -> Result<PathBuf> {
        match self {
            Self::Stonechat => stonechat(args.stonechat.as_deref()),
            Self::LlamaCpp => match &args.llama_server {
                Some(path) => given("--llama-server", path),
                None => llama_server::build(),
            },
        }
    }
}

/// Absolute path of a program that an option names.
fn given(option: &str, path: &Path) -> Result<PathBuf> {
    ensure!(path.is_file(), "{option} {}: no such file", path.display());
    Ok(std::path::absolute(path)?)
}

/// The program of `--stonechat`; without it this tree's, built in the release profile.
pub(crate) fn stonechat(path: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = path {
        return given("--stonechat", path);
    }
    shell::run(shell::cargo().args(["build", "--release", "--package", "stonechat-cli"]))?;
    Ok(shell::target_dir()
        .join("release")
        .join(format!("stonechat{}", std::env::consts::EXE_SUFFIX)))
}

/// Flags that all servers get.
#[derive(Debug)]
pub(crate) struct Flags<'a> {
    pub(crate) model: &'a Path,
    /// Speech model, which only this engine's server gets.
    pub(crate) audio_model: Option<&'a str>,
    pub(crate) slots: usize,
    pub(crate) context: usize,
    pub(crate) threads: usize,
    pub(crate) more: &'a [String],
}

impl Flags<'_> {
    fn arguments(&self, server: Server, port: u16) -> Vec<String> {
        let mut arguments = Vec::new();
        if server == Server::Stonechat {
            arguments.push("serve".to_owned());
        }
        arguments.extend(["-m".to_owned(), self.model.display().to_string()]);
        if let (Server::Stonechat, Some(model)) = (server, self.audio_model) {
            arguments.extend(["-m".to_owned(), model.to_owned()]);
        }
        for (flag, value) in [
            ("--alias", ALIAS.to_owned()),
            ("--parallel", self.slots.to_string()),
            ("-c", self.context.to_string()),
            ("-t", self.threads.to_string()),
            ("--host", "127.0.0.1".to_owned()),
            ("--port", port.to_string()),
        ] {
            arguments.extend([flag.to_owned(), value]);
        }
        arguments.extend_from_slice(self.more);
        arguments
    }
}

/// Port, name of the log, and time to start.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) port: u16,
    pub(crate) log: String,
    pub(crate) timeout: Duration,
}

/// A server that answers.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) name: &'static str,
    pub(crate) process: ServerProcess,
    pub(crate) target: Target,
}

impl Running {
    /// Starts a server on a free port and waits until it is healthy.
    pub(crate) fn start(
        server: Server,
        program: &Path,
        flags: &Flags<'_>,
        endpoint: Endpoint,
        timeout: Duration,
    ) -> Result<Self> {
        let place = Place { port: free_port()?, log: format!("{}.log", server.name()), timeout };
        Self::start_at(&place, server, program, flags, endpoint)
    }

    /// Starts a server at a place and waits until it is healthy.
    pub(crate) fn start_at(
        place: &Place,
        server: Server,
        program: &Path,
        flags: &Flags<'_>,
        endpoint: Endpoint,
    ) -> Result<Self> {
        let Place { port, ref log, timeout } = *place;
        let url = format!("http://127.0.0.1:{port}");
        let folder = shell::target_dir().join("load");
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let mut command = Command::new(program);
        command.args(flags.arguments(server, port)).current_dir(shell::workspace_root());
        let mut process = ServerProcess::start(&mut command, &folder.join(log))?;
        process.wait_until(timeout, || is_healthy(&url))?;
        let target = Target::new(&url, None, Some(ALIAS), endpoint, timeout)?;
        Ok(Self { name: server.name(), process, target })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_get_the_same_flags() {
        let more = ["-x".to_owned()];
        let flags = Flags {
            model: Path::new("m.gguf"),
            audio_model: Some("base"),
            slots: 16,
            context: 16_384,
            threads: 2,
            more: &more,
        };
        let of = |server| flags.arguments(server, 81).join(" ");
        let same = "--alias load --parallel 16 -c 16384 -t 2 --host 127.0.0.1 --port 81 -x";
        assert_eq!(of(Server::Stonechat), format!("serve -m m.gguf -m base {same}"));
        assert_eq!(of(Server::LlamaCpp), format!("-m m.gguf {same}"));
    }
}
