//! What the verbs for language models share: finding and loading a model, reading a prompt.
//!
//! [`sampling`] holds the flags of the sampling chain, [`gpu_layers`] those of devices; each verb has a file of its own.

pub(super) mod bench;
pub(super) mod chat;
pub(super) mod generate;
mod gpu_layers;
pub(super) mod perplexity;
mod sampling;
pub(super) mod tokenize;

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::ValueEnum;
use stonechat::Models;
use stonechat::formats::ModelFile;
use stonechat::llm::{
    self, Config, Devices, Model, Placement, Session, SessionOptions, StateOptions,
};
use stonechat::nn::{KvDType, LoadStats};

use self::gpu_layers::{DevicesArgs, ModelWork};
use super::console::Console;
use super::load::with_cost;
use super::megabytes;

/// Flags of every verb that runs a model.
#[derive(Debug, clap::Args)]
pub(super) struct ModelArgs {
    /// Model: a GGUF file, a Hugging Face folder or the name of an installed model
    #[arg(short, long)]
    model: String,
    /// Threads; 0 is one for each physical core
    #[arg(short, long, value_name = "N", default_value_t = 0)]
    threads: usize,
    #[command(flatten)]
    devices: DevicesArgs,
    /// Print times, and what each device has
    #[arg(short, long, conflicts_with = "quiet")]
    verbose: bool,
    /// Print nothing but the result and errors
    #[arg(short, long)]
    quiet: bool,
}

/// Flags of the context.
#[derive(Debug, clap::Args)]
pub(super) struct ContextArgs {
    /// Tokens that the context holds; 0 is that of training [default: that, at most 16384]
    #[arg(short, long, value_name = "N")]
    ctx_size: Option<usize>,
    /// Tokens of one forward pass over the prompt
    #[arg(short, long, value_name = "N", default_value_t = SessionOptions::default().n_batch)]
    batch_size: usize,
    /// Type of cached keys and values
    #[arg(long, visible_alias = "ctk", value_name = "TYPE", value_enum, default_value_t = KvName::F16)]
    cache_type_k: KvName,
}

/// Values of `--cache-type-k`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum KvName {
    F32,
    F16,
    #[value(name = "q8_0")]
    Q8_0,
}

impl KvName {
    fn dtype(self) -> KvDType {
        match self {
            Self::F32 => KvDType::F32,
            Self::F16 => KvDType::F16,
            Self::Q8_0 => KvDType::Q8_0,
        }
    }
}

impl ContextArgs {
    fn session(&self, config: &Config, n_sequences: usize) -> SessionOptions {
        SessionOptions {
            n_ctx: match self.ctx_size {
                Some(0) => Some(config.n_ctx_train),
                asked => asked,
            },
            n_batch: self.batch_size,
            kv_dtype: self.cache_type_k.dtype(),
            n_sequences,
        }
    }
}

/// Opens the file of a model that is given by path or name.
fn open(name: &str) -> anyhow::Result<(PathBuf, ModelFile)> {
    let path = Models::from_env().find(name)?;
    let file = ModelFile::open(&path)?;
    Ok((path, file))
}

impl ModelArgs {
    /// Opens the devices and does `work` there.
    fn on_devices<W: ModelWork>(&self, work: W) -> anyhow::Result<W::Output> {
        self.devices.run(self.threads, &self.model, &Console::new(self.quiet), work)
    }

    /// Loads the model for `work`, with a bar on a terminal.
    fn load<D: Devices>(&self, devices: D, work: impl ModelWork) -> anyhow::Result<Model<D>> {
        let console = Console::new(self.quiet);
        let loaded = load(&self.model, devices, &console)?;
        if self.verbose {
            console.note(&loaded.report());
        }
        if self.verbose || self.devices.is_split() {
            let lines = loaded.placements(&work.state(loaded.model.config()));
            lines.iter().for_each(|line| console.note(line));
        }
        Ok(loaded.model)
    }

    /// Makes a session, for which a device may have kernels to compile.
    fn session<'m, D: Devices>(
        &self,
        model: &'m Model<D>,
        options: SessionOptions,
    ) -> anyhow::Result<Session<'m, D>> {
        let (start, before) = (Instant::now(), model.load_stats());
        let session = Session::new(model, options)?;
        if self.verbose {
            let after = model.load_stats();
            let cost = LoadStats {
                compiled_kernels: after.compiled_kernels - before.compiled_kernels,
                compile_time: after.compile_time - before.compile_time,
                ..LoadStats::default()
            };
            let (n_ctx, seconds) = (session.n_ctx(), start.elapsed().as_secs_f64());
            let text = format!("context of {n_ctx} tokens {seconds:.3} s");
            Console::new(self.quiet).note(&with_cost(&text, ": ", cost));
        }
        Ok(session)
    }
}

/// A model and how long loading it took.
struct Loaded<D: Devices> {
    model: Model<D>,
    time: Duration,
}

impl<D: Devices> Loaded<D> {
    /// A line about the time.
    fn report(&self) -> String {
        let (seconds, cost) = (self.time.as_secs_f64(), self.model.load_stats());
        with_cost(&format!("load {seconds:.3} s"), ": ", cost)
    }

    /// A line about each device, where the state has these sizes.
    fn placements(&self, options: &StateOptions) -> Vec<String> {
        let line = |placement: Placement| {
            let bytes = [placement.weight_bytes, placement.kv_bytes].map(megabytes);
            format!("{placement}: {} of weights, {} of keys and values", bytes[0], bytes[1])
        };
        self.model.placements(options).into_iter().map(line).collect()
    }
}

fn load<D: Devices>(name: &str, devices: D, console: &Console) -> anyhow::Result<Loaded<D>> {
    let start = Instant::now();
    let (path, file) = open(name)?;
    const STEPS: f32 = 1000.0;
    console.begin("loading", STEPS as u64);
    let loaded = Model::load(devices, &file, |done| console.advance((done * STEPS) as u64));
    console.end();
    let model = explained(loaded, &path, &file)?;
    Ok(Loaded { model, time: start.elapsed() })
}

/// What was read of a file, or an error that says which and what to do with it.
fn explained<T>(read: Result<T, llm::Error>, path: &Path, file: &ModelFile) -> anyhow::Result<T> {
    read.with_context(|| {
        let advice = if is_whisper(file) { " (speech models: `stonechat transcribe`)" } else { "" };
        format!("cannot load `{}`{advice}", path.display())
    })
}

fn is_whisper(file: &ModelFile) -> bool {
    file.whisper_bin().is_some()
        || file.metadata().str("general.architecture").is_ok_and(|name| name == "whisper")
        || file.tensors().any(|tensor| tensor.name.starts_with("encoder"))
}

/// The content of a text file, or of standard input for `-`.
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
