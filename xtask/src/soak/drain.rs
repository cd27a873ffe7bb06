//! `cargo xtask soak --drain`: two servers behind nginx, stopped in turns while requests run. No request may fail.
//!
//! nginx runs with the configuration of the guide, which keeps connections to the servers open, and with one that opens a
//! connection for each request.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fastrand::Rng;

use super::{CONTEXT, SLOTS, SoakArgs, TIMEOUT, metrics, n_threads};
use crate::load::client::{Outcome, Prompt, Target};
use crate::load::prompts::{Prompts, mix};
use crate::load::servers::{Flags, Place, Running, Server};
use crate::load::{Endpoint, stonechat};
use crate::models::locate;
use crate::server_process::{ServerProcess, free_port, is_healthy};
use crate::shell;

/// Document with the configuration, and the addresses in it.
const GUIDE: &str = "docs/guide/serve.md";
const FENCE: &str = "```nginx\n";
const DOCUMENTED: [&str; 3] = ["listen 80;", "127.0.0.1:8081", "127.0.0.1:8082"];
/// A configuration without kept connections, with these addresses. A server that starts answers 503.
const PLAIN: &str = "upstream stonechat { server 127.0.0.1:8081; server 127.0.0.1:8082; }
server { listen 80; location / {
    proxy_pass http://stonechat; proxy_next_upstream error timeout http_503 non_idempotent;
} }";
/// Messages of nginx about a connection that a server closed before it answered: the request goes to the other server.
const LOST: [&str; 2] = ["prematurely closed", "reset by peer"];
/// Clients at a time.
const N_CLIENTS: usize = 8;
/// Time of load before each stop.
const LOAD_TIME: Duration = Duration::from_secs(3);
/// Time in which nginx sends requests to a server that is back.
const RETURN_TIME: Duration = Duration::from_secs(60);
/// Failures that are printed.
const MAX_SHOWN: usize = 10;

/// Answers of all clients.
#[derive(Debug, Default)]
struct Answers {
    n: AtomicU64,
    failures: Mutex<Vec<String>>,
    is_over: AtomicBool,
}

/// The servers' program, flags and places.
struct Fleet<'a> {
    program: &'a Path,
    flags: Flags<'a>,
    places: [Place; 2],
}

/// nginx in the path, or where Debian has it.
fn find_nginx() -> Option<&'static str> {
    let is_there = |name: &&str| shell::succeeds(Command::new(name).arg("-v"));
    ["nginx", "/usr/sbin/nginx"].into_iter().find(is_there)
}

/// Runs both configurations; an error if a request fails.
pub(super) fn run(args: &SoakArgs) -> Result<()> {
    let Some(nginx) = find_nginx() else {
        println!("SKIPPED soak --drain: no nginx");
        return Ok(());
    };
    let path = shell::workspace_root().join(GUIDE);
    let guide =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let documented = documented(&guide).with_context(|| format!("{GUIDE}: no nginx block"))?;
    let (model, program) = (locate(&args.model)?, stonechat(args.stonechat.as_deref())?);
    let more = args.server_args(&["--metrics", "--stop-timeout", "60"]);
    let flags = Flags {
        model: &model,
        audio_model: None,
        slots: SLOTS,
        context: CONTEXT,
        threads: n_threads().div_ceil(2),
        more: &more,
    };
    let place = |n: usize| -> Result<Place> {
        Ok(Place { port: free_port()?, log: format!("drain-{n}.log"), timeout: TIMEOUT })
    };
    let fleet = Fleet { program: &program, flags, places: [place(1)?, place(2)?] };
    for (name, text) in [("guide", documented), ("plain", PLAIN)] {
        let folder = shell::target_dir().join("load").join(format!("nginx-{name}"));
        fleet.drain(args, nginx, text, &folder).with_context(|| format!("nginx-{name}"))?;
    }
    Ok(())
}

/// The configuration in the guide.
fn documented(guide: &str) -> Option<&str> {
    let blocks = guide.split(FENCE).skip(1).filter_map(|rest| rest.split_once("```"));
    blocks.map(|(text, _)| text).find(|text| text.contains("upstream"))
}

/// A whole configuration around the part of the guide, whose addresses become these ports.
fn configuration(text: &str, listen: u16, servers: [u16; 2], folder: &Path) -> Result<String> {
    let mut text = text.to_owned();
    let new = [
        format!("listen 127.0.0.1:{listen};"),
        format!("127.0.0.1:{}", servers[0]),
        format!("127.0.0.1:{}", servers[1]),
    ];
    for (old, new) in DOCUMENTED.into_iter().zip(new) {
        ensure!(text.contains(old), "expected `{old}` in {text}");
        text = text.replace(old, &new);
    }
    let folder = folder.display();
    let paths = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let paths: String =
        paths.iter().map(|name| format!("{name}_temp_path {folder}/{name};\n")).collect();
    Ok(format!(
        "daemon off;\npid {folder}/nginx.pid;\nerror_log {folder}/error.log;\nworker_processes 1;\n\
         events {{}}\nhttp {{\naccess_log off;\n{paths}{text}\n}}\n"
    ))
}

impl Fleet<'_> {
    fn start(&self, index: usize) -> Result<Running> {
        let (place, server) = (&self.places[index], Server::Stonechat);
        Running::start_at(place, server, self.program, &self.flags, Endpoint::Chat)
    }

    /// Stops and starts each server in turn behind nginx.
    fn drain(&self, args: &SoakArgs, nginx: &str, text: &str, folder: &Path) -> Result<()> {
        let mut servers = [self.start(0)?, self.start(1)?];
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let (port, config) = (free_port()?, folder.join("nginx.conf"));
        let ports = self.places.each_ref().map(|place| place.port);
        fs::write(&config, configuration(text, port, ports, folder)?)
            .with_context(|| format!("cannot write {}", config.display()))?;
        // Left by an earlier run.
        let _ = fs::remove_file(folder.join("error.log"));
        let _proxy = start_nginx(nginx, &config, folder, port)?;
        let url = format!("http://127.0.0.1:{port}");
        let target =
            Target::new(&url, None, Some(&servers[0].target.model), Endpoint::Chat, TIMEOUT)?;
        let (prompts, answers) = (Prompts::read()?, Answers::default());
        let drained = scope(|scope| {
            for index in 0..N_CLIENTS {
                let (target, prompts, answers) = (&target, &prompts, &answers);
                let seed = mix(&[args.seed, index as u64]);
                scope.spawn(move || send_until_over(target, prompts, answers, seed));
            }
            let drained = (0..2 * args.rounds)
                .try_for_each(|round| self.restart(&mut servers[round % 2], round % 2, &answers));
            answers.is_over.store(true, Ordering::Release);
            drained
        });
        let failures = answers.failures.into_inner().unwrap_or_else(PoisonError::into_inner);
        for failure in failures.iter().take(MAX_SHOWN) {
            println!("FAILED {failure}");
        }
        let (n, n_failed) = (answers.n.into_inner(), failures.len());
        let log = fs::read_to_string(folder.join("error.log")).unwrap_or_default();
        let is_lost = |line: &&str| LOST.iter().any(|text| line.contains(text));
        let n_lost = log.lines().filter(is_lost).count();
        println!(
            "{}: {n} requests, {n_lost} met a closing connection, {n_failed} failed",
            config.display()
        );
        drained?;
        ensure!(n > 0 && n_failed == 0, "{n_failed} of {n} requests failed");
        Ok(())
    }

    /// Stops a server under load, starts it again and waits until nginx sends it requests.
    fn restart(&self, server: &mut Running, index: usize, answers: &Answers) -> Result<()> {
        sleep(LOAD_TIME);
        let before = answers.n.load(Ordering::Acquire);
        ensure!(server.process.terminate(), "cannot stop a server");
        let status = server.process.wait(TIMEOUT).context("a server does not stop")?;
        ensure!(status.success(), "a server ended with {status}: {}", server.process.last_line());
        let meanwhile = answers.n.load(Ordering::Acquire) - before;
        *server = self.start(index)?;
        let start = Instant::now();
        loop {
            if metrics::read(&server.target)?.n_posts(None) > 0 {
                break;
            }
            ensure!(start.elapsed() < RETURN_TIME, "nginx sends a restarted server no requests");
            sleep(Duration::from_millis(100));
        }
        println!("server {} stopped during {meanwhile} answers and is back", index + 1);
        Ok(())
    }
}

fn start_nginx(nginx: &str, config: &Path, folder: &Path, port: u16) -> Result<ServerProcess> {
    let log: PathBuf = folder.join("nginx.log");
    let mut command = Command::new(nginx);
    command.arg("-p").arg(folder).arg("-c").arg(config).arg("-e").arg(folder.join("error.log"));
    let mut process = ServerProcess::start(&mut command, &log)?;
    let url = format!("http://127.0.0.1:{port}");
    process.wait_until(TIMEOUT, || is_healthy(&url))?;
    Ok(process)
}

/// Sends streams and short requests in turns, each on a connection of its own.
fn send_until_over(target: &Target, prompts: &Prompts, answers: &Answers, seed: u64) {
    let mut random = Rng::with_seed(seed);
    let fail = |text: String| {
        answers.failures.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    };
    while !answers.is_over.load(Ordering::Acquire) {
        let text = prompts.prompt(random.usize(2..30), random.u64(..));
        let max_tokens = random.usize(1..=24);
        let failure = if random.bool() {
            let prompt =
                Prompt { text: &text, max_tokens, abort_after: None, start: Instant::now() };
            match target.stream(prompt, &|_| ()) {
                stream if stream.outcome != Outcome::Done => Some(format!("{:?}", stream.outcome)),
                stream => {
                    let n = stream.usage.map_or(0, |usage| usage.completion_tokens);
                    (n != max_tokens as u64).then(|| format!("{n} of {max_tokens} tokens"))
                }
            }
        } else {
            let body = serde_json::json!({"content": text}).to_string();
            match target.send("/tokenize", "application/json", body.as_bytes()) {
                Ok(answer) if answer.is_success() => None,
                Ok(answer) => Some(answer.error()),
                Err(error) => Some(format!("{error:#}")),
            }
        };
        answers.n.fetch_add(1, Ordering::AcqRel);
        if let Some(failure) = failure {
            fail(failure);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_of_the_guide_has_the_addresses_that_are_replaced() {
        let guide = fs::read_to_string(shell::workspace_root().join(GUIDE)).unwrap();
        for text in [documented(&guide).unwrap(), PLAIN] {
            let whole = configuration(text, 91, [92, 93], Path::new("folder")).unwrap();
            for expected in
                ["listen 127.0.0.1:91;", "127.0.0.1:92", "127.0.0.1:93", "folder/proxy;"]
            {
                assert!(whole.contains(expected), "{expected}: {whole}");
            }
            assert!(!whole.contains(":808"), "{whole}");
        }
        assert!(configuration("listen 80;", 91, [92, 93], Path::new("folder")).is_err());
    }
}
