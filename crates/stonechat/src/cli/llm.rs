//! What the verbs for language models share: finding and loading a model, reading a prompt.
//!
//! [`sampling`] holds the flags of the sampling chain; each verb has a file of its own.

pub(super) mod bench;
pub(super) mod chat;
pub(super) mod generate;
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
use stonechat::llm::{Model, Session, SessionOptions};
use stonechat::nn::{Backend, KvDType, LoadCost};

use super::console::Console;
use super::device::{DeviceArgs, Work};
use super::load::with_cost;

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
    device: DeviceArgs,
    /// Print times
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
    fn session<B: Backend>(&self, model: &Model<B>, n_sequences: usize) -> SessionOptions {
        SessionOptions {
            n_ctx: match self.ctx_size {
                Some(0) => Some(model.config().n_ctx_train),
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
    /// Opens the device and does `work` there.
    fn on_device<W: Work>(&self, work: W) -> anyhow::Result<W::Output> {
        self.device.run(self.threads, work)
    }

    /// Loads the model, with a bar on a terminal.
    fn load<B: Backend>(&self, backend: B) -> anyhow::Result<Model<B>> {
        let console = Console::new(self.quiet);
        let loaded = load(&self.model, backend, &console)?;
        if self.verbose {
            console.note(&loaded.report());
        }
        Ok(loaded.model)
    }

    /// Makes a session, for which a device may have kernels to compile.
    fn session<'m, B: Backend>(
        &self,
        model: &'m Model<B>,
        options: SessionOptions,
    ) -> anyhow::Result<Session<'m, B>> {
        let (start, before) = (Instant::now(), model.backend().load_cost());
        let session = Session::new(model, options)?;
        if self.verbose {
            let after = model.backend().load_cost();
            let cost = LoadCost {
                kernels: after.kernels - before.kernels,
                compiling: after.compiling - before.compiling,
                ..LoadCost::default()
            };
            let (n_ctx, seconds) = (session.n_ctx(), start.elapsed().as_secs_f64());
            let text = format!("context of {n_ctx} tokens {seconds:.3} s");
            Console::new(self.quiet).note(&with_cost(&text, ": ", cost));
        }
        Ok(session)
    }
}

/// A model and how long loading it took.
struct Loaded<B: Backend> {
    model: Model<B>,
    time: Duration,
}

impl<B: Backend> Loaded<B> {
    /// A line about the time.
    fn report(&self) -> String {
        let (seconds, cost) = (self.time.as_secs_f64(), self.model.backend().load_cost());
        with_cost(&format!("load {seconds:.3} s"), ": ", cost)
    }
}

fn load<B: Backend>(name: &str, backend: B, console: &Console) -> anyhow::Result<Loaded<B>> {
    let start = Instant::now();
    let (path, file) = open(name)?;
    const STEPS: f32 = 1000.0;
    console.begin("loading", STEPS as u64);
    let loaded = Model::load(backend, &file, |done| console.advance((done * STEPS) as u64));
    console.end();
    let model = loaded.with_context(|| {
        let advice =
            if is_whisper(&file) { " (speech models: `stonechat transcribe`)" } else { "" };
        format!("cannot load `{}`{advice}", path.display())
    })?;
    Ok(Loaded { model, time: start.elapsed() })
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
