//! A server as a child process: a free port, waiting for `/health`, the end of its log when it fails, a stop.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::shell;

/// Pause between looks at a server that starts or stops.
const POLL: Duration = Duration::from_millis(50);
/// Time that a server has to finish after SIGTERM.
const STOP_TIME: Duration = Duration::from_secs(10);
/// Time that a server has to answer `/health`.
const PROBE_TIME: Duration = Duration::from_secs(10);

/// A running server, stopped on drop.
#[derive(Debug)]
pub(crate) struct ServerProcess {
    child: Child,
    /// Command that started it.
    pub(crate) command: String,
    /// Standard output and error of the server.
    pub(crate) log: PathBuf,
}

/// A port of 127.0.0.1 that was free a moment ago.
pub(crate) fn free_port() -> Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("no free port")?;
    Ok(listener.local_addr()?.port())
}

/// Whether `/health` of a server answers with status 200.
pub(crate) fn is_healthy(url: &str) -> bool {
    // The environment's proxy knows nothing of this machine's ports.
    let config = ureq::Agent::config_builder().proxy(None).timeout_global(Some(PROBE_TIME)).build();
    let response = ureq::Agent::new_with_config(config).get(format!("{url}/health")).call();
    response.is_ok_and(|response| response.status() == 200)
}

impl ServerProcess {
    /// Starts `command`, whose output goes to `log`.
    pub(crate) fn start(command: &mut Command, log: &Path) -> Result<Self> {
        let shown = shell::describe(command);
        println!("$ {shown}");
        let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("cannot start `{shown}`"))?;
        Ok(Self { child, command: shown, log: log.to_owned() })
    }

    /// Waits until `is_ready` returns true; an error if the server ends before or takes longer than `limit`.
    pub(crate) fn wait_until(
        &mut self,
        limit: Duration,
        is_ready: impl Fn() -> bool,
    ) -> Result<()> {
        let start = Instant::now();
        while !is_ready() {
            if let Some(status) = self.child.try_wait()? {
                bail!("`{}` ended with {status}: {}", self.command, self.last_line());
            }
            if start.elapsed() > limit {
                bail!(
                    "`{}` is not ready after {} s: {}",
                    self.command,
                    limit.as_secs(),
                    self.last_line()
                );
            }
            sleep(POLL);
        }
        Ok(())
    }

    /// The exit status of a server that has ended.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits for the end of a server that was asked to finish, for at most `limit`; `None` if it still runs.
    pub(crate) fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let start = Instant::now();
        while self.ended().is_none() && start.elapsed() < limit {
            sleep(POLL);
        }
        self.ended()
    }

    /// The last line of its output.
    pub(crate) fn last_line(&self) -> String {
        let bytes = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("").trim().to_owned()
    }

    /// Process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks the server to finish, which `std` cannot.
    pub(crate) fn terminate(&self) -> bool {
        cfg!(unix) && shell::succeeds(Command::new("kill").args(["-TERM", &self.pid().to_string()]))
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        if self.ended().is_none() && self.terminate() {
            self.wait(STOP_TIME);
        }
        // A process that has ended is only waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn sh(name: &str, script: &str) -> ServerProcess {
        let log = std::env::temp_dir().join(format!("server-{name}-{}", std::process::id()));
        ServerProcess::start(Command::new("sh").args(["-c", script]), &log).unwrap()
    }

    #[test]
    fn a_server_that_ends_early_is_named_with_its_last_line() {
        let mut server = sh("early", "echo first; echo 'no such model' >&2; exit 3");
        let error = server.wait_until(Duration::from_secs(60), || false).unwrap_err().to_string();
        assert!(error.contains("exit status: 3: no such model"), "{error}");
        std::fs::remove_file(&server.log).unwrap();
    }

    #[test]
    fn a_server_is_stopped_on_drop() {
        let mut server = sh("drop", "exec sleep 600");
        let looks = Cell::new(0);
        let is_ready = || looks.replace(looks.get() + 1) > 1;
        server.wait_until(Duration::from_secs(60), is_ready).unwrap();
        assert!(server.ended().is_none());
        let (pid, log) = (server.child.id(), server.log.clone());
        drop(server);
        assert!(!shell::succeeds(Command::new("kill").args(["-0", &pid.to_string()])));
        std::fs::remove_file(log).unwrap();
    }

    #[test]
    fn ports_are_free() {
        let port = free_port().unwrap();
        TcpListener::bind(("127.0.0.1", port)).unwrap();
    }
}
