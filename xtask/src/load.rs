//! `cargo xtask load`: load on servers that speak OpenAI's API, with tokens per second, times to first token and gaps.
//!
//! File map (`load/`): `prompts` and `schedule` say what is sent and when; `client` sends one request, `sse` reads its
//! stream; `drive` runs the requests of a point; `report` has figures, tables and JSON; `servers` starts servers,
//! `llama_server` builds llama.cpp's.

pub(crate) mod client;
mod drive;
mod llama_server;
pub(crate) mod prompts;
mod report;
mod schedule;
pub(crate) mod servers;
pub(crate) mod sse;

use std::fs;
use std::path::PathBuf;
use std::thread::{available_parallelism, sleep};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};

use crate::machine;
use crate::models::locate;
use client::{Outcome, Prompt, Recording, Target};
use drive::{Arrival, Load};
use prompts::{Prompts, mix};
use report::{Point, Report, SCHEMA, ServerInfo};
use schedule::Plan;
pub(crate) use servers::stonechat;
use servers::{Flags, Running, Server};

/// Pause after each point: threads of a peer spin for a while after their work.
const PAUSE: Duration = Duration::from_millis(250);
/// Words per token of the request that measures tokens per word: few enough that it is no longer than the long prompt.
const CALIBRATION_RATIO: f64 = 0.5;
/// Tokens of a slot's context that `-np` slots get when `-c` says nothing.
const SLOT_CONTEXT: usize = 1024;

/// Options of `cargo xtask load`.
#[derive(Debug, clap::Args)]
pub(crate) struct LoadArgs {
    /// Base URL of a running server, with or without /v1
    #[arg(required_unless_present = "servers", conflicts_with = "servers")]
    url: Option<String>,
    /// Start this server on a free port; several take turns, the first is compared with the others
    #[arg(long = "server", value_name = "SERVER", requires = "model")]
    servers: Vec<Server>,
    /// Model: id in the requests to a running server [default: the first that it lists], else name or GGUF file
    #[arg(short, long)]
    model: Option<String>,
    /// Speech model of uploads
    #[arg(long, value_name = "MODEL", default_value = "base")]
    audio_model: String,
    /// Program of stonechat [default: release build of this tree]
    #[arg(long, value_name = "FILE")]
    stonechat: Option<PathBuf>,
    /// Program of llama-server [default: built once into the target folder]
    #[arg(long, value_name = "FILE")]
    llama_server: Option<PathBuf>,
    /// Slots of started servers [default: most streams]
    #[arg(long = "parallel", visible_alias = "np", value_name = "N")]
    slots: Option<usize>,
    /// Context of all slots of started servers [default: 1024 for each slot]
    #[arg(short, long, value_name = "N")]
    ctx_size: Option<usize>,
    /// Threads of started servers [default: one for each processor]
    #[arg(short, long, value_name = "N")]
    threads: Option<usize>,
    /// Further argument of all started servers; repeatable
    #[arg(long = "server-arg", value_name = "ARG", allow_hyphen_values = true)]
    server_args: Vec<String>,
    /// API key
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
    /// Route
    #[arg(long, value_enum, default_value_t = Endpoint::Completions)]
    endpoint: Endpoint,
    /// Concurrent streams, one point each; 0 runs uploads alone
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        default_value = "1,4,16",
        conflicts_with = "rates"
    )]
    streams: Vec<usize>,
    /// Requests per second that arrive as a Poisson process, one point each, instead of streams
    #[arg(long = "rate", value_name = "R", value_delimiter = ',')]
    rates: Vec<f64>,
    /// Requests of each stream; with --rate, of a point
    #[arg(long, value_name = "N", default_value_t = 4)]
    requests: usize,
    /// Start no request after this many seconds
    #[arg(long, value_name = "SECONDS")]
    duration: Option<f64>,
    /// Start the next request of all streams together
    #[arg(long, conflicts_with_all = ["rates", "duration", "intrusion"])]
    waves: bool,
    /// Words of a prompt, different ones each time; of a list, each request draws one
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "100")]
    prompt_words: Vec<usize>,
    /// Words before that which all requests of a point share
    #[arg(long, value_name = "WORDS", default_value_t = 0)]
    shared_prefix: usize,
    /// Tokens of each stream (`ignore_eos` is set)
    #[arg(long, value_name = "N", default_value_t = 64)]
    max_tokens: usize,
    /// Share of requests whose client goes away after a random number of tokens
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    abort_share: f64,
    /// Uploads of --audio at a time beside the streams
    #[arg(long, value_name = "N", default_value_t = 0, requires = "audio")]
    uploads: usize,
    /// Recording to upload
    #[arg(long, value_name = "FILE")]
    audio: Option<PathBuf>,
    /// Tokens of a prompt sent while the streams run, which then repeat until it is answered
    #[arg(long, value_name = "TOKENS", conflicts_with = "rates")]
    intrusion: Option<usize>,
    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 1)]
    rounds: usize,
    /// Seed of prompts, arrivals and aborts [default: the clock, so that no server has seen a prompt before]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Seconds that a server may take to start or to send the next bytes
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
    /// Write figures and the times of each request to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Route of the streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Endpoint {
    /// /v1/completions: the prompt alone
    Completions,
    /// /v1/chat/completions: the prompt in the model's chat template
    Chat,
}

/// A server that is measured.
struct Contender {
    name: String,
    target: Target,
    running: Option<Running>,
}

/// A load with its name in tables.
struct Spec {
    name: String,
    arrival: Arrival,
    rate: Option<f64>,
}

impl LoadArgs {
    fn specs(&self) -> Vec<Spec> {
        let plural = |n: usize, noun: &str| format!("{n} {noun}{}", if n == 1 { "" } else { "s" });
        let uploads = match self.uploads {
            0 => String::new(),
            n => format!(" + {}", plural(n, "upload")),
        };
        let of_rate = |&rate: &f64| Spec {
            name: format!("{rate} requests/s{uploads}"),
            arrival: Arrival::Open,
            rate: Some(rate),
        };
        let of_streams = |&streams: &usize| Spec {
            name: format!("{}{uploads}", plural(streams, "stream")),
            arrival: Arrival::Closed { streams, waves: self.waves },
            rate: None,
        };
        if self.rates.is_empty() {
            self.streams.iter().map(of_streams).collect()
        } else {
            self.rates.iter().map(of_rate).collect()
        }
    }

    fn check(&self) -> Result<()> {
        ensure!(self.requests > 0, "--requests: expected at least 1, got 0");
        ensure!(self.rounds > 0, "--rounds: expected at least 1, got 0");
        ensure!(self.max_tokens > 0, "--max-tokens: expected at least 1, got 0");
        ensure!(!self.prompt_words.contains(&0), "--prompt-words: expected at least 1, got 0");
        let share = self.abort_share;
        ensure!((0.0..=1.0).contains(&share), "--abort-share: expected 0 to 1, got {share}");
        let wrong = self.rates.iter().find(|rate| !(rate.is_finite() && **rate > 0.0));
        ensure!(wrong.is_none(), "--rate: expected more than 0, got {wrong:?}");
        if let Some(seconds) = self.duration {
            ensure!(seconds > 0.0, "--duration: expected more than 0, got {seconds}");
        }
        let has_no_stream = self.rates.is_empty() && self.streams.contains(&0);
        ensure!(self.uploads > 0 || !has_no_stream, "--streams 0 needs --uploads");
        ensure!(self.intrusion.is_none() || !has_no_stream, "--intrusion needs streams");
        Ok(())
    }

    fn seed(&self) -> u64 {
        self.seed.unwrap_or_else(unix_seconds)
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }

    fn recording(&self) -> Result<Option<Recording>> {
        let Some(path) = self.audio.as_ref().filter(|_| self.uploads > 0) else { return Ok(None) };
        let bytes =
            fs::read(path).with_context(|| format!("--audio: cannot read {}", path.display()))?;
        Ok(Some(Recording { path: path.clone(), bytes, model: self.audio_model.clone() }))
    }

    /// Starts the servers, or finds the one that runs.
    fn contenders(&self) -> Result<Vec<Contender>> {
        if let Some(url) = &self.url {
            let (key, model) = (self.api_key.as_deref(), self.model.as_deref());
            let target = Target::new(url, key, model, self.endpoint, self.timeout())?;
            return Ok(vec![Contender { name: url.clone(), target, running: None }]);
        }
        ensure!(self.api_key.is_none(), "--api-key is for a running server");
        let model = locate(self.model.as_deref().context("--server needs --model")?)?;
        let programs = self
            .servers
            .iter()
            .map(|server| Ok((*server, server.program(self)?)))
            .collect::<Result<Vec<_>>>()?;
        let most = self.streams.iter().copied().max().unwrap_or(1).max(1);
        let slots = self.slots.unwrap_or(most);
        let flags = Flags {
            model: &model,
            audio_model: (self.uploads > 0).then_some(self.audio_model.as_str()),
            slots,
            context: self.ctx_size.unwrap_or(SLOT_CONTEXT * slots),
            threads: self.threads.unwrap_or_else(|| available_parallelism().map_or(1, usize::from)),
            more: &self.server_args,
        };
        let start = |(server, program): &(Server, PathBuf)| {
            let running = Running::start(*server, program, &flags, self.endpoint, self.timeout())?;
            Ok(Contender {
                name: running.name.to_owned(),
                target: running.target.clone(),
                running: Some(running),
            })
        };
        programs.iter().map(start).collect()
    }

    /// The text of the long prompt. Its length in words follows from the tokens of other words in the same proportion: a
    /// shorter prompt, whose words stand in reverse order, so that the server has cached nothing of it.
    fn intruder(&self, target: &Target, prompts: &Prompts, seed: u64) -> Result<Option<String>> {
        let Some(tokens) = self.intrusion else { return Ok(None) };
        // Requests have the numbers from 0 on.
        let seed = mix(&[seed, u64::MAX - 1]);
        let n_words = ((tokens as f64 * CALIBRATION_RATIO) as usize).max(1);
        let text = prompts.prompt(n_words, seed);
        let text: Vec<&str> = text.split(' ').rev().collect();
        let text = text.join(" ");
        let prompt =
            Prompt { text: &text, max_tokens: 1, abort_after: None, start: Instant::now() };
        let stream = target.stream(prompt, &|_| ());
        if let Outcome::Failed(message) = stream.outcome {
            bail!("--intrusion: a prompt of {n_words} words failed: {message}");
        }
        let counted = stream.usage.map_or(0, |usage| usage.prompt_tokens);
        ensure!(counted > 0, "--intrusion: the server does not tell the tokens of a prompt");
        let words = tokens as f64 * n_words as f64 / counted as f64;
        Ok(Some(prompts.prompt((words as usize).max(1), seed)))
    }
}

/// Measures, prints, and writes JSON if asked for.
pub(crate) fn run(args: &LoadArgs) -> Result<()> {
    args.check()?;
    if let Some(path) = &args.json {
        fs::write(path, "").with_context(|| format!("cannot write {}", path.display()))?;
    }
    let recording = args.recording()?;
    let prompts = Prompts::read()?;
    let machine = machine::detect(available_parallelism().map_or(1, usize::from));
    println!("{}", machine::describe(&machine));
    let seed = args.seed();
    let mut contenders = args.contenders()?;
    for contender in &contenders {
        warm_up(args, contender, &prompts, seed)?;
    }
    let mut points: Vec<Point> = Vec::new();
    for round in 1..=args.rounds {
        for (index, spec) in args.specs().iter().enumerate() {
            let from = points.len();
            let seed = mix(&[seed, round as u64, index as u64]);
            for turn in 0..contenders.len() {
                // Rotation, so that the order of the servers differs from round to round.
                let turn = (round - 1 + index + turn) % contenders.len();
                let contender = &mut contenders[turn];
                let point =
                    measure(args, contender, spec, (round, seed), &prompts, recording.as_ref())?;
                points.push(point);
                sleep(PAUSE);
            }
            let new: Vec<&Point> = points[from..].iter().collect();
            print!("{}", report::table(&new));
            new.iter().for_each(|point| print!("{}", report::remarks(point)));
        }
    }
    let medians = report::medians(&points);
    if args.rounds > 1 || contenders.len() > 1 {
        print!("\nmedians\n{}", report::comparison(&medians));
    }
    if let Some(path) = &args.json {
        let report = Report {
            schema: SCHEMA,
            created_unix_s: unix_seconds(),
            seed,
            command: std::env::args().skip(1).collect(),
            machine: stonechat_benches::report::Machine { load_after: machine::load(), ..machine },
            servers: contenders.iter().map(Contender::info).collect(),
            points,
            medians,
        };
        let text = serde_json::to_string_pretty(&report)? + "\n";
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
        println!("wrote {}", path.display());
    }
    Ok(())
}

impl Contender {
    fn info(&self) -> ServerInfo {
        ServerInfo {
            name: self.name.clone(),
            command: self.running.as_ref().map_or_else(String::new, |r| r.process.command.clone()),
            model: self.target.model.clone(),
        }
    }
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// One short request, so that no point pays for a server's first one.
fn warm_up(args: &LoadArgs, contender: &Contender, prompts: &Prompts, seed: u64) -> Result<()> {
    if args.rates.is_empty() && args.streams.iter().all(|n| *n == 0) {
        return Ok(());
    }
    let text = prompts.prompt(args.prompt_words[0], mix(&[seed, u64::MAX]));
    let prompt = Prompt { text: &text, max_tokens: 8, abort_after: None, start: Instant::now() };
    match contender.target.stream(prompt, &|_| ()).outcome {
        Outcome::Failed(message) => {
            bail!("{}: the first request failed: {message}", contender.name)
        }
        Outcome::Done | Outcome::Aborted => Ok(()),
    }
}

fn measure(
    args: &LoadArgs,
    contender: &mut Contender,
    spec: &Spec,
    (round, seed): (usize, u64),
    prompts: &Prompts,
    recording: Option<&Recording>,
) -> Result<Point> {
    let mut plan = Plan::new(prompts, seed, &args.prompt_words, args.max_tokens);
    plan.shared_prefix = args.shared_prefix;
    plan.rate = spec.rate;
    plan.abort_share = args.abort_share;
    let intruder = args.intruder(&contender.target, prompts, seed)?;
    let load = Load {
        arrival: spec.arrival,
        requests: args.requests,
        duration: args.duration.map(Duration::from_secs_f64),
        uploads: args.uploads,
        recording,
        intruder: intruder.as_deref(),
    };
    let measured = drive::run(&contender.target, plan, &load);
    if let Some(running) = &mut contender.running
        && let Some(status) = running.process.ended()
    {
        bail!("{} ended with {status}: {}", contender.name, running.process.last_line());
    }
    Ok(Point::new(&contender.name, round, &spec.name, &measured))
}

#[cfg(test)]
mod tests;
