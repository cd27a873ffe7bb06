//! `stonechat perplexity`: perplexity of a model on a text.

use std::path::PathBuf;

use stonechat::llm::{Model, PerplexityOptions, perplexity};

use super::super::console::Console;
use super::super::print;
use super::{ModelName, RunArgs, read_text};
use crate::headings::{CONTEXT, INPUT, OUTPUT};
use crate::kv_type::KeyTypeArgs;

const EXAMPLES: &str = "\
Examples:
  stonechat perplexity model.gguf -f wiki.test.raw
  stonechat perplexity model.gguf -f wiki.test.raw -c 1024 -b 256 --json";

/// Arguments of `stonechat perplexity`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// Text file; - is standard input
    #[arg(short, long, value_name = "FILE", help_heading = INPUT)]
    file: PathBuf,
    /// Context size in tokens
    ///
    /// Perplexity is measured over the second half of each window.
    #[arg(short, long, value_name = "N", default_value_t = 512, help_heading = CONTEXT)]
    ctx_size: usize,
    /// Batch size in tokens
    ///
    /// Up to 16 tokens are computed with the precision of decoding, more in f32.
    #[arg(short, long, value_name = "N", default_value_t = 16, help_heading = CONTEXT)]
    batch_size: usize,
    #[command(flatten)]
    model: ModelName,
    #[command(flatten, next_help_heading = CONTEXT)]
    kv_type: KeyTypeArgs,
    /// Print one JSON object
    #[arg(long, help_heading = OUTPUT)]
    json: bool,
    #[command(flatten)]
    run: RunArgs,
}

/// Prints the perplexity as the last number of standard output.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let path = args.model.find()?;
    let text = read_text(&args.file)?;
    let loaded = args.run.load(&path, |_| args.options().state())?;
    measure(args, &text, &loaded.model)
}

impl Args {
    fn options(&self) -> PerplexityOptions {
        PerplexityOptions {
            n_ctx: self.ctx_size,
            n_batch: self.batch_size,
            kv_dtype: self.kv_type.cache_type_k,
        }
    }
}

fn measure(args: &Args, text: &str, model: &Model) -> anyhow::Result<()> {
    // As llama-perplexity does: the line feed at the end of a file is no part of the text.
    let text = text.strip_suffix('\n').unwrap_or(text);
    let options = args.options();
    let console = Console::new(args.run.quiet);
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
