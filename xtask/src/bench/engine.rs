//! A worker process: this engine's, of some revision, or another engine's.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use stonechat_benches::protocol::{PROTOCOL, Reply, Request};

/// A running worker.
#[derive(Debug)]
pub(super) struct Engine {
    /// Label of its rows.
    pub(super) name: String,
    pub(super) version: String,
    /// Instruction set or kernels, in its own words.
    pub(super) device: String,
    pub(super) threads: usize,
    child: Child,
    requests: Option<ChildStdin>,
    replies: BufReader<ChildStdout>,
    /// Log of its standard error, shown when it dies.
    log: PathBuf,
}

impl Engine {
    /// Starts `command`, which writes to `log` what it has to say. The engine's own name is `name` unless
    /// that is given.
    pub(super) fn start(command: &mut Command, name: Option<&str>, log: &Path) -> Result<Self> {
        let shown = Path::new(command.get_program()).display().to_string();
        let errors =
            File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .with_context(|| format!("cannot start {shown}"))?;
        let requests = child.stdin.take();
        let replies = BufReader::new(child.stdout.take().context("the output is piped")?);
        let mut engine = Self {
            name: name.unwrap_or_default().to_owned(),
            version: String::new(),
            device: String::new(),
            threads: 0,
            child,
            requests,
            replies,
            log: log.to_owned(),
        };
        let hello =
            engine.ask(&Request::Hello).with_context(|| format!("{shown} does not answer"))?;
        let Reply::Hello { protocol, engine: own_name, version, device, threads } = hello else {
            bail!("{shown}: expected a greeting, got {hello:?}")
        };
        ensure!(
            protocol == PROTOCOL,
            "{shown} speaks version {protocol} of the workers' protocol, this driver version {PROTOCOL}"
        );
        if engine.name.is_empty() {
            engine.name = own_name;
        }
        (engine.version, engine.device, engine.threads) = (version, device, threads);
        Ok(engine)
    }

    /// The answer to a request; a failure is an error with the worker's words.
    pub(super) fn ask(&mut self, request: &Request) -> Result<Reply> {
        let mut line = serde_json::to_string(request)?;
        line.push('\n');
        let requests = self.requests.as_mut().context("the worker was told to stop")?;
        let sent = requests.write_all(line.as_bytes()).and_then(|()| requests.flush());
        line.clear();
        if sent.is_err() || self.replies.read_line(&mut line)? == 0 {
            let last_words = self.last_words();
            bail!("{} stopped: {last_words}", self.name);
        }
        match serde_json::from_str(&line) {
            Ok(Reply::Failed { error }) => bail!("{}: {error}", self.name),
            Ok(reply) => Ok(reply),
            Err(error) => bail!("{}: cannot read the answer {:?}: {error}", self.name, line.trim()),
        }
    }

    /// The end of what it wrote to standard error, or how it ended.
    fn last_words(&mut self) -> String {
        let status = self.child.wait().map_or_else(|e| e.to_string(), |status| status.to_string());
        let bytes = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let last = text.lines().rev().find(|line| !line.trim().is_empty());
        match last {
            Some(line) => format!("{status}: {}", line.trim()),
            None => status,
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Without requests to come it stops; one that does not would outlive this program.
        self.requests = None;
        for _ in 0..200 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
