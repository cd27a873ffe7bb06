//! Verbs of language models, and what they share: loading a model, reading a prompt.
//!
//! [`sampling`] has the flags of the sampling chain, [`gpu_layers`] those of devices.

pub(super) mod bench;
pub(super) mod chat;
pub(super) mod embed;
pub(super) mod generate;
mod gpu_layers;
pub(super) mod perplexity;
pub(super) mod run;
mod sampling;
pub(super) mod speculation;
pub(super) mod tokenize;

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use stonechat::formats::ModelFile;
use stonechat::llm::{Config, Model, Placement, Session, SessionOptions, StateOptions};
use stonechat::nn::LoadStats;

use self::gpu_layers::DevicesArgs;
use super::completions::language_names;
use super::console::Console;
use super::device::OpenDevices;
use super::find_model;
use super::format_bytes;
use super::headings::{CONTEXT, DEVICE, OPTIONS, OUTPUT};
use super::kv_type::KvTypeArgs;
use super::load::with_load_stats;

/// Model of a verb: positional, or `--model`.
#[derive(Debug, clap::Args)]
pub(super) struct ModelName {
    /// Model: GGUF file, Hugging Face folder, name or user/repo[:TYPE]
    #[arg(value_name = "MODEL", add = language_names())]
    positional: Option<String>,
    /// The same as MODEL, which wins
    #[arg(short, long, value_name = "MODEL", help_heading = OPTIONS, add = language_names())]
    model: Option<String>,
}

impl ModelName {
    /// Finds the model; on a terminal, offers to download one that is missing.
    fn find(&self) -> anyhow::Result<PathBuf> {
        let name = self.positional.as_deref().or(self.model.as_deref());
        find_model::find(name.ok_or(usage_error!("no model: expected MODEL or --model"))?)
    }
}

/// Device and messages of a verb that runs a model.
#[derive(Debug, clap::Args)]
pub(super) struct RunArgs {
    /// Print timings and the placement of layers
    #[arg(short, long, conflicts_with = "quiet", help_heading = OPTIONS)]
    verbose: bool,
    /// Print nothing but the result and errors
    #[arg(short, long, help_heading = OPTIONS)]
    quiet: bool,
    /// Number of CPU threads; 0 is one per physical core
    #[arg(short, long, value_name = "N", default_value_t = 0, help_heading = DEVICE)]
    threads: usize,
    #[command(flatten)]
    devices: DevicesArgs,
}

/// Flags that end a text.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = OUTPUT)]
pub(super) struct StopArgs {
    /// Number of tokens to predict; -1 is no limit
    #[arg(short, long, value_name = "N", default_value_t = -1, allow_negative_numbers = true)]
    n_predict: i64,
    /// Stop string that ends the text; repeatable
    #[arg(short, long, visible_alias = "stop", value_name = "TEXT")]
    reverse_prompt: Vec<String>,
}

impl StopArgs {
    /// Maximum new tokens; `None` is no limit.
    fn n_predict(&self) -> Option<usize> {
        usize::try_from(self.n_predict).ok()
    }
}

/// Flags of the context.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = CONTEXT)]
pub(super) struct ContextArgs {
    /// Context size in tokens; 0 is the model's [default: 0, up to 16384]
    #[arg(short, long, value_name = "N")]
    ctx_size: Option<usize>,
    /// Batch size for prompt processing in tokens
    #[arg(short, long, value_name = "N", default_value_t = SessionOptions::default().n_batch)]
    batch_size: usize,
    #[command(flatten)]
    kv_type: KvTypeArgs,
}

impl ContextArgs {
    fn session(&self, config: &Config) -> SessionOptions {
        SessionOptions {
            n_ctx: match self.ctx_size {
                Some(0) => Some(config.n_ctx_train),
                n_ctx => n_ctx,
            },
            n_batch: self.batch_size,
            kv_dtype: self.kv_type.dtype(),
            ..SessionOptions::default()
        }
    }
}

impl RunArgs {
    /// Opens the devices for the model at `path` and loads it, with a progress bar; `state` gives the sizes of the state.
    fn load(&self, path: &Path, state: impl Fn(&Config) -> StateOptions) -> anyhow::Result<Loaded> {
        let console = Console::new(self.quiet);
        let messages = (&console, self.verbose);
        let loaded = self.devices.load(path, self.threads, messages, &state)?;
        if self.verbose {
            console.note(&loaded.report());
        }
        if self.verbose || self.devices.is_split() {
            let lines = loaded.placements(&state(loaded.model.config()));
            lines.iter().for_each(|line| console.note(line));
        }
        Ok(loaded)
    }

    /// Makes a session; a device may compile kernels for it.
    fn session(&self, model: &Model, options: SessionOptions) -> anyhow::Result<Session> {
        let (start, before) = (Instant::now(), model.load_stats());
        let n_train = model.config().n_ctx_train;
        if let Some(n_ctx) = options.n_ctx.filter(|n_ctx| *n_ctx > n_train) {
            let note = format!(
                "--ctx-size {n_ctx}: the model was trained on {n_train} tokens, longer texts may be wrong"
            );
            Console::new(self.quiet).note(&note);
        }
        let session = Session::new(model, options)?;
        if self.verbose {
            let after = model.load_stats();
            let stats = LoadStats {
                compiled_kernels: after.compiled_kernels - before.compiled_kernels,
                compile_time: after.compile_time - before.compile_time,
                ..LoadStats::default()
            };
            let (n_ctx, seconds) = (session.n_ctx(), start.elapsed().as_secs_f64());
            let text = format!("context of {n_ctx} tokens {seconds:.3} s");
            Console::new(self.quiet).note(&with_load_stats(&text, ": ", stats));
        }
        Ok(session)
    }
}

/// A model with its devices and load time.
struct Loaded {
    model: Model,
    time: Duration,
    _devices: OpenDevices,
}

impl Loaded {
    /// Formats the load time and statistics.
    fn report(&self) -> String {
        let (seconds, stats) = (self.time.as_secs_f64(), self.model.load_stats());
        with_load_stats(&format!("load {seconds:.3} s"), ": ", stats)
    }

    /// Formats the placement on each device, with the bytes of weights and KV cache.
    fn placements(&self, options: &StateOptions) -> Vec<String> {
        let line = |placement: Placement| {
            let bytes = [placement.weight_bytes, placement.kv_bytes].map(format_bytes);
            format!("{placement}: weights {}, KV cache {}", bytes[0], bytes[1])
        };
        self.model.placements(options).into_iter().map(line).collect()
    }
}

/// Adds the path to the error of loading `file`; a speech model is named as one.
fn with_path<T, E>(result: Result<T, E>, path: &Path, file: &ModelFile) -> anyhow::Result<T>
where
    Result<T, E>: Context<T, E>,
{
    if result.is_err() && is_whisper(file) {
        bail!(
            "`{}` is a speech model: expected a language model; `stonechat transcribe -m` runs it on recordings",
            path.display()
        )
    }
    result.with_context(|| format!("cannot load `{}`", path.display()))
}

fn is_whisper(file: &ModelFile) -> bool {
    file.whisper_bin().is_some()
        || file.metadata().str("general.architecture").is_ok_and(|name| name == "whisper")
        || stonechat::whisper::Config::from_file(file).is_ok()
}

/// Adds to the error of a text that is too long how far `--ctx-size` can be raised.
fn with_context_advice(error: stonechat::llm::Error, config: &Config) -> anyhow::Error {
    use stonechat::llm::Error::ContextFull;
    let n_train = config.n_ctx_train;
    match error {
        ContextFull { tokens, n_ctx } if n_ctx < n_train => anyhow!(
            "{tokens} tokens do not fit the context of {n_ctx}: shorten the prompt, or raise --ctx-size, up to {n_train}"
        ),
        ContextFull { tokens, n_ctx } => anyhow!(
            "{tokens} tokens do not fit the context of {n_ctx}: shorten the prompt; the model was trained on {n_train}"
        ),
        error => error.into(),
    }
}

/// Chat template of a flag: the text of a file, else the flag's own.
pub(super) fn read_template(text: &str) -> anyhow::Result<String> {
    let path = Path::new(text);
    if path.is_file() { read_text(path) } else { Ok(text.to_owned()) }
}

/// Reads a text file, or standard input for `-`.
fn read_text(path: &Path) -> anyhow::Result<String> {
    let bytes = if path == Path::new("-") {
        let mut bytes = Vec::new();
        io::stdin().lock().read_to_end(&mut bytes).context("cannot read standard input")?;
        bytes
    } else {
        std::fs::read(path).with_context(|| format!("cannot read `{}`", path.display()))?
    };
    match String::from_utf8(bytes) {
        Ok(text) => Ok(text),
        Err(error) => {
            let at = error.utf8_error().valid_up_to();
            bail!("`{}`: expected UTF-8 text, got another byte at offset {at}", path.display())
        }
    }
}
