//! `stonechat perplexity`: how well a model predicts a text.

use std::path::PathBuf;

use stonechat::llm::{Config, Devices, Model, PerplexityOptions, StateOptions, perplexity};

use super::super::console::Console;
use super::super::print;
use super::gpu_layers::ModelWork;
use super::{KvName, ModelArgs, read_text};

/// Arguments of `stonechat perplexity`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// The text; `-` reads standard input
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Tokens of a window, whose later half is measured
    #[arg(short, long, value_name = "N", default_value_t = 512)]
    ctx_size: usize,
    /// Tokens of one forward pass; up to 16 it computes as decoding does, beyond in f32
    #[arg(short, long, value_name = "N", default_value_t = 16)]
    batch_size: usize,
    /// Type of cached keys and values
    #[arg(long, visible_alias = "ctk", value_name = "TYPE", value_enum, default_value_t = KvName::F16)]
    cache_type_k: KvName,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Prints the perplexity, the last number on standard output.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    args.model.on_devices(Measure(args))
}

#[derive(Clone, Copy)]
struct Measure<'a>(&'a Args);

impl ModelWork for Measure<'_> {
    type Output = ();

    fn state(&self, _: &Config) -> StateOptions {
        self.0.options().state()
    }

    fn run<D: Devices>(self, devices: D) -> anyhow::Result<()> {
        let text = read_text(&self.0.file)?;
        let model = self.0.model.load(devices, self)?;
        measure(self.0, &text, &model)
    }
}

impl Args {
    fn options(&self) -> PerplexityOptions {
        PerplexityOptions {
            n_ctx: self.ctx_size,
            n_batch: self.batch_size,
            kv_dtype: self.cache_type_k.dtype(),
        }
    }
}

fn measure<D: Devices>(args: &Args, text: &str, model: &Model<D>) -> anyhow::Result<()> {
    // As llama-perplexity does: editors end files with a line feed that is no part of the text.
    let text = text.strip_suffix('\n').unwrap_or(text);
    let options = args.options();
    let console = Console::new(args.model.quiet);
    let measured = pollster::block_on(perplexity(model, text, &options, &mut |report| {
        if report.window == 1 {
            console.begin("windows", report.n_windows as u64);
        }
        console.advance(report.window as u64);
    }))?;
    console.end();
    if args.json {
        let report = serde_json::json!({
            "tokens": measured.n_tokens,
            "windows": measured.n_windows,
            "std_error": measured.std_error,
            "perplexity": measured.value,
        });
        print(&format!("{report}\n"))?;
    } else {
        let (windows, tokens) = (measured.n_windows, measured.n_tokens);
        let error = measured.std_error;
        print(&format!(
            "{windows} windows of {}, {tokens} tokens measured, standard error {error:.5}\nperplexity {:.4}\n",
            args.ctx_size, measured.value
        ))?;
    }
    Ok(())
}
