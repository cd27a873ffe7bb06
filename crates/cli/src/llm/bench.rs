//! `stonechat bench`: the tests of llama-bench.

use std::path::Path;
use std::time::Instant;

use clap::ValueEnum;
use comfy_table::{Table, presets};
use serde::Serialize;
use stonechat::llm::{Model, OutputRequest, Placement, Slot, State, StateOptions};
use stonechat::sampling::{Rng, SamplingOptions};

use super::super::console::Console;
use super::super::{format_bytes, print};
use super::Loaded;
use super::gpu_layers::DevicesArgs;
use crate::completions::language_names;
use crate::find_model;
use crate::headings::{DEVICE, TESTS};
use crate::kv_type::KeyTypeArgs;

/// Sequence of the tests.
const SLOT: Slot = Slot::new(0);

const EXAMPLES: &str = "\
Examples:
  stonechat bench model.gguf
  stonechat bench q4_k.gguf q8_0.gguf -p 128 -n 32 -t 1,2
  stonechat bench model.gguf --device wgpu -o json";

/// Arguments of `stonechat bench`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// Models: files, folders or names
    #[arg(value_name = "MODEL", add = language_names())]
    positional: Vec<String>,
    /// The same as MODEL, comma-separated; MODEL wins
    #[arg(short, long, value_name = "MODEL", value_delimiter = ',', add = language_names())]
    model: Vec<String>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
    /// Prompt lengths (pp), comma-separated; 0 is none
    #[arg(short = 'p', long, value_name = "N", value_delimiter = ',', default_value = "512", help_heading = TESTS)]
    n_prompt: Vec<usize>,
    /// Text lengths (tg), comma-separated; 0 is none
    #[arg(short = 'n', long, value_name = "N", value_delimiter = ',', default_value = "128", help_heading = TESTS)]
    n_gen: Vec<usize>,
    /// Repetitions of each test, after one warmup run
    #[arg(short, long, value_name = "N", default_value_t = 5, help_heading = TESTS)]
    repetitions: usize,
    /// Batch size for prompt processing in tokens
    #[arg(short, long, value_name = "N", default_value_t = 512, help_heading = TESTS)]
    batch_size: usize,
    #[command(flatten, next_help_heading = TESTS)]
    kv_type: KeyTypeArgs,
    /// CPU threads, comma-separated; 0 is one per physical core
    #[arg(short, long, value_name = "N", value_delimiter = ',', default_value = "0", help_heading = DEVICE)]
    threads: Vec<usize>,
    #[command(flatten)]
    devices: DevicesArgs,
}

/// Values of `--output`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    #[value(alias = "md")]
    Table,
    Json,
}

/// Result of a test.
#[derive(Debug, Serialize)]
struct Measured {
    model: String,
    #[serde(rename = "type")]
    dtype: String,
    size_bytes: u64,
    n_params: u64,
    backend: String,
    /// Layers of each device.
    placement: Vec<String>,
    threads: usize,
    /// Load time, including that of opening the file.
    load_s: f64,
    repack_s: f64,
    test: String,
    n_prompt: usize,
    n_gen: usize,
    avg_tok_s: f64,
    stddev_tok_s: f64,
    median_tok_s: f64,
    samples_tok_s: Vec<f64>,
}

/// Runs the tests and prints their results.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    if args.repetitions == 0 {
        anyhow::bail!(usage_error!("--repetitions: expected at least 1, got 0"));
    }
    let console = Console::new(false);
    let mut all = Vec::new();
    let names = if args.positional.is_empty() { &args.model } else { &args.positional };
    anyhow::ensure!(!names.is_empty(), usage_error!("no model: expected MODEL or --model"));
    for name in names {
        let path = find_model::find(name)?;
        for &threads in &args.threads {
            all.extend(run_tests(args, &path, threads, &console)?);
        }
    }
    match args.output {
        Output::Json => print(&format!("{}\n", serde_json::to_string_pretty(&all)?))?,
        Output::Table => print(&table(&all))?,
    }
    Ok(())
}

/// Runs the tests of one model at one number of threads.
fn run_tests(
    args: &Args,
    path: &Path,
    threads: usize,
    console: &Console,
) -> anyhow::Result<Vec<Measured>> {
    let longest = args.n_prompt.iter().chain(&args.n_gen).max();
    let state = args.state(longest.copied().unwrap_or(0));
    let loaded = args.devices.load(path, threads, (console, true), |_| state)?;
    let name = path.display();
    console.note(&format!("{name}: {}", loaded.report()));
    if args.devices.is_split() {
        let lines = loaded.placements(&state);
        lines.iter().for_each(|line| console.note(&format!("{name}: {line}")));
    }
    let prompts = args.n_prompt.iter().map(|&n| (n, 0));
    let texts = args.n_gen.iter().map(|&n| (0, n));
    let tests = prompts.chain(texts).filter(|&(prompt, text)| prompt + text > 0);
    tests.map(|test| measure(args, &loaded, threads, test)).collect()
}

impl Args {
    /// State sizes of a test of `n` tokens.
    fn state(&self, n: usize) -> StateOptions {
        let (n_batch, kv_dtype) = (self.batch_size.min(n.max(1)), self.kv_type.cache_type_k);
        StateOptions { n_batch, kv_dtype, ..StateOptions::new(n.max(64)) }
    }
}

fn measure(
    args: &Args,
    loaded: &Loaded,
    threads: usize,
    (n_prompt, n_gen): (usize, usize),
) -> anyhow::Result<Measured> {
    let model = &loaded.model;
    let n = n_prompt + n_gen;
    let options = args.state(n);
    let mut state = model.state(options)?;
    let mut rng = Rng::new(1);
    let mut samples = Vec::new();
    for repetition in 0..=args.repetitions {
        state.truncate(SLOT, 0);
        let start = Instant::now();
        if n_prompt > 0 {
            prefill(model, &mut state, n_prompt, &mut rng)?;
        }
        for _ in 0..n_gen {
            prefill(model, &mut state, 1, &mut rng)?;
        }
        if repetition > 0 {
            samples.push(n as f64 / start.elapsed().as_secs_f64());
        }
    }
    let summary = model.summary();
    let mean = samples.iter().sum::<f64>() / samples.len() as f64;
    let squares: f64 = samples.iter().map(|s| (s - mean).powi(2)).sum();
    let mut sorted = samples.clone();
    sorted.sort_by(f64::total_cmp);
    Ok(Measured {
        model: summary.name.clone(),
        dtype: summary.dtype.clone(),
        size_bytes: summary.weight_bytes,
        n_params: summary.n_params,
        backend: model.describe(),
        placement: model.placements(&options).iter().map(Placement::to_string).collect(),
        threads,
        load_s: loaded.time.as_secs_f64(),
        repack_s: model.load_stats().repack_time.as_secs_f64(),
        test: if n_prompt > 0 { format!("pp{n_prompt}") } else { format!("tg{n_gen}") },
        n_prompt,
        n_gen,
        avg_tok_s: mean,
        stddev_tok_s: (squares / (samples.len().max(2) - 1) as f64).sqrt(),
        median_tok_s: sorted[sorted.len() / 2],
        samples_tok_s: samples,
    })
}

/// Evaluates `n` random tokens in batches and reads what a sampler with default options needs of the last one.
fn prefill(model: &Model, state: &mut State, n: usize, rng: &mut Rng) -> anyhow::Result<()> {
    let vocab_size = model.config().vocab_size as f64;
    let tokens: Vec<u32> = (0..n).map(|_| (rng.uniform() * vocab_size) as u32).collect();
    let output = match SamplingOptions::default().top_k {
        k if k <= model.max_top_k() => OutputRequest::TopK(k),
        _ => OutputRequest::Logits,
    };
    let chunks = tokens.chunks(state.options().n_batch);
    let last = chunks.len() - 1;
    for (index, chunk) in chunks.enumerate() {
        // A GPU runs asynchronously: a pass ends with the readback of its result.
        pollster::block_on(state.run(SLOT, chunk, output, usize::from(index == last)))?;
    }
    Ok(())
}

fn table(all: &[Measured]) -> String {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["model", "type", "size", "params", "backend", "test", "t/s", "median"]);
    table.add_rows(all.iter().map(|m| {
        [
            m.model.clone(),
            m.dtype.clone(),
            format_bytes(m.size_bytes),
            format!("{:.1} M", m.n_params as f64 / 1e6),
            m.backend.clone(),
            m.test.clone(),
            format!("{:.2} ± {:.2}", m.avg_tok_s, m.stddev_tok_s),
            format!("{:.2}", m.median_tok_s),
        ]
    }));
    format!("{table}\n")
}
