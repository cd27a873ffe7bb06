//! `cargo xtask soak`: mixed load on `stonechat serve`, with checks of every answer, memory, KV pages, metrics.
//!
//! | file in `soak/` | holds |
//! |---|---|
//! | `kinds`, `bodies` | table of the requests, and their bodies |
//! | `framing`, `dialects` | readers of answers, and the forms of answers and errors of each API |
//! | `traffic` | threads of the clients |
//! | `requests`, `uploads`, `live`, `garbage` | clients of texts, recordings, live speech, invalid requests |
//! | `raw` | sockets of clients that break off, or read slowly |
//! | `ledger` | sums of the answers |
//! | `memory`, `metrics`, `checks` | those of the server, compared at the end |
//! | `drain` | servers that stop behind nginx |

mod bodies;
mod checks;
mod dialects;
mod drain;
mod framing;
mod garbage;
mod kinds;
mod ledger;
mod live;
mod memory;
mod metrics;
mod raw;
mod requests;
mod traffic;
mod uploads;

use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{available_parallelism, scope, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::load::client::{Recording, Target};
use crate::load::prompts::Prompts;
use crate::load::servers::{Flags, Place, Running, Server};
use crate::load::{Endpoint, stonechat};
use crate::models::locate;
use crate::server_process::{ServerProcess, free_port};
use crate::{scripted_model, shell};
use checks::Check;
use ledger::Ledger;
use memory::Sample;
use traffic::{Floods, Traffic};
use uploads::Clip;

/// Sequences of the server: fewer than the choices that are asked for at a time, so that requests wait.
const SLOTS: usize = 8;
/// Context, and tokens of the KV cache: requests evict cached prompts, and now and then each other.
const CONTEXT: usize = 4096;
/// Requests that a model may have: more than the clients without a flood, who may rank several documents each.
const MAX_QUEUE: usize = 48;
/// Time to load the models, and that the server may be silent in an answer.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Interval between looks at the memory.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(2);
/// Time in which caches fill, at most half of the run.
const SETTLE_TIME: Duration = Duration::from_secs(300);

/// Options of `cargo xtask soak`.
#[derive(Debug, clap::Args)]
pub(crate) struct SoakArgs {
    /// Minutes of load
    #[arg(long, value_name = "N", default_value_t = 30.0)]
    minutes: f64,
    /// Language model: name or GGUF file
    #[arg(short, long, default_value = "smollm2-135m")]
    model: String,
    /// Model of tool calls: name or GGUF file [default: the one that writes given answers]
    ///
    /// The model has to call the given tool when a user asks "What is the weather?".
    #[arg(long, value_name = "MODEL")]
    tool_model: Option<String>,
    /// Speech model: name or file
    #[arg(long, value_name = "MODEL", default_value = "tiny.en")]
    audio_model: String,
    /// Recording to upload; repeatable [default: those of test-data/audio]
    ///
    /// Live sessions send those that are WAV files of 16 kHz with one channel.
    #[arg(long, value_name = "FILE")]
    audio: Vec<PathBuf>,
    /// Program of stonechat [default: release build of this tree]
    #[arg(long, value_name = "FILE")]
    stonechat: Option<PathBuf>,
    /// Further argument of the servers; repeatable
    #[arg(long = "server-arg", value_name = "ARG", allow_hyphen_values = true)]
    server_args: Vec<String>,
    /// Seed of prompts and times
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Instead, stop two servers behind nginx in turns while requests run
    #[arg(long)]
    drain: bool,
    /// Stops of each server with --drain
    #[arg(long, value_name = "N", default_value_t = 3, requires = "drain")]
    rounds: usize,
}

impl SoakArgs {
    /// Flags of the server beside those that all servers of a load get.
    fn server_args(&self, own: &[&str]) -> Vec<String> {
        let own = own.iter().map(|&arg| arg.to_owned());
        own.chain(self.server_args.iter().cloned()).collect()
    }

    fn recordings(&self) -> Result<Vec<Recording>> {
        let mut paths = self.audio.clone();
        if paths.is_empty() {
            let folder = shell::workspace_root().join("test-data/audio");
            for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
                paths.push(entry?.path());
            }
            paths.retain(|path| path.extension().is_some_and(|extension| extension == "wav"));
            paths.sort();
        }
        ensure!(!paths.is_empty(), "expected a recording, got none");
        let read = |path: PathBuf| {
            let bytes = fs::read(&path)
                .with_context(|| format!("--audio: cannot read {}", path.display()))?;
            Ok(Recording { path, bytes, model: "whisper-1".to_owned() })
        };
        paths.into_iter().map(read).collect()
    }
}

fn n_threads() -> usize {
    available_parallelism().map_or(1, usize::from)
}

/// Runs the load; an error if a check fails.
pub(crate) fn run(args: &SoakArgs) -> Result<()> {
    if args.drain {
        return drain::run(args);
    }
    ensure!(args.minutes > 0.0, "--minutes: expected more than 0, got {}", args.minutes);
    let duration = Duration::from_secs_f64(args.minutes * 60.0);
    let (prompts, recordings) = (Prompts::read()?, args.recordings()?);
    let clips: Vec<Clip> = recordings.iter().filter_map(Clip::new).collect();
    ensure!(!clips.is_empty(), "--audio: expected a WAV file of 16 kHz with one channel");
    let (model, audio_model) = (locate(&args.model)?, locate(&args.audio_model)?);
    let tool_model = match &args.tool_model {
        Some(model) => locate(model)?,
        None => scripted_model::file()?,
    };
    let program = stonechat(args.stonechat.as_deref())?;
    let slots = shell::target_dir().join("load/slots");
    fs::create_dir_all(&slots).with_context(|| format!("cannot make {}", slots.display()))?;
    let (kv_tokens, max_queue) = (CONTEXT.to_string(), MAX_QUEUE.to_string());
    let slots = slots.display().to_string();
    let (tool_model, wyoming) = (tool_model.display().to_string(), free_port()?);
    let wyoming_port = wyoming.to_string();
    let more = args.server_args(&[
        "-m",
        &tool_model,
        "--wyoming-port",
        &wyoming_port,
        "--metrics",
        "--kv-tokens",
        &kv_tokens,
        // Full after a few minutes, so that the memory can be flat.
        "--cache-ram",
        "64",
        "--max-queue",
        &max_queue,
        "--max-body-size",
        "1MiB",
        "--max-audio-size",
        "16MiB",
        "--slot-save-path",
        &slots,
    ]);
    let flags = Flags {
        model: &model,
        audio_model: Some(&audio_model.display().to_string()),
        slots: SLOTS,
        context: CONTEXT,
        threads: n_threads(),
        more: &more,
    };
    let place = Place { port: free_port()?, log: "soak.log".to_owned(), timeout: TIMEOUT };
    let mut running =
        Running::start_at(&place, Server::Stonechat, &program, &flags, Endpoint::Chat)?;
    let traffic = Traffic {
        tool_model: last_model(&running.target)?,
        target: running.target.clone(),
        wyoming: format!("127.0.0.1:{wyoming}"),
        prompts,
        recordings,
        clips,
        seed: args.seed,
        ledger: Ledger::default(),
        floods: Floods::default(),
        chain: Mutex::default(),
        is_over: AtomicBool::new(false),
    };
    let samples = scope(|scope| {
        traffic.start(scope);
        let samples = watch(&traffic, &mut running.process, duration);
        traffic.is_over.store(true, Ordering::Release);
        samples
    })?;
    println!("waiting until the server is idle");
    let settle_time = SETTLE_TIME.min(duration / 2);
    let checks = checks::run(&traffic, &running.process, &samples, settle_time)?;
    checks.iter().for_each(Check::print);
    if let Some(status) = running.process.ended() {
        bail!("the server ended with {status}: {}", running.process.last_line());
    }
    println!("the server's log is {}", running.process.log.display());
    let n_failed = checks.iter().filter(|check| !check.is_ok).count();
    ensure!(n_failed == 0, "{n_failed} of {} checks failed", checks.len());
    Ok(())
}

/// Id of the last model of a server: that of tool calls.
fn last_model(target: &Target) -> Result<String> {
    let list = target.get("/v1/models")?.json()?;
    let last = list["data"].as_array().and_then(|models| models.last());
    let id = last.and_then(|model| model["id"].as_str());
    Ok(id.with_context(|| format!("/v1/models: expected a model, got {list}"))?.to_owned())
}

/// Samples the memory until the end of the load, and prints a line a minute.
fn watch(
    traffic: &Traffic,
    process: &mut ServerProcess,
    duration: Duration,
) -> Result<Vec<Sample>> {
    let (start, mut samples) = (Instant::now(), Vec::new());
    let mut next_minute = 1;
    while start.elapsed() < duration {
        sleep(SAMPLE_INTERVAL);
        if let Some(status) = process.ended() {
            bail!("the server ended with {status}: {}", process.last_line());
        }
        let bytes = memory::read(process.pid())?;
        samples.push(Sample { time: start.elapsed(), bytes });
        if start.elapsed().as_secs() >= next_minute * 60 || start.elapsed() >= duration {
            println!("{}", line(traffic, next_minute, bytes)?);
            next_minute += 1;
        }
    }
    Ok(samples)
}

fn line(traffic: &Traffic, minute: u64, bytes: u64) -> Result<String> {
    let pages = metrics::read(&traffic.target)?.pages();
    let megabytes = memory::megabytes(bytes as f64);
    let totals = traffic.ledger.totals();
    Ok(format!(
        "minute {minute}: {} | {} problems | RssAnon + VmSwap {megabytes:.1} MB | KV pages: {} used, {} cached of {}",
        totals.describe(),
        totals.n_problems,
        pages.used,
        pages.cached,
        pages.total
    ))
}
