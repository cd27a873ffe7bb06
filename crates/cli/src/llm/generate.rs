//! `stonechat generate`: completion of a prompt.

use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::bail;
use serde::Serialize;
use stonechat::llm::{
    BeamOptions, Completion, Config, DraftCounts, Event, Finish, GenerateOptions, Guidance, Model,
    OnFull, SessionOptions, TokenProbs,
};

use super::super::console::Console;
use super::super::print;
use super::sampling::{SamplingArgs, unescape};
use super::speculation::SpeculationArgs;
use super::{ContextArgs, ModelName, RunArgs, StopArgs, read_text, with_context_advice};
use crate::headings::{CONTEXT, GUIDANCE, INPUT, OUTPUT};
use crate::interrupt::interrupt_flag;
use crate::json::rounded;

/// Maximum of `--beams`.
const MAX_BEAMS: usize = 64;

const EXAMPLES: &str = "\
Examples:
  stonechat generate model.gguf -p \"The capital of France is\" -n 16 --temp 0
  stonechat generate model.gguf -p \"A city:\" -n 80 -j '{\"type\":\"object\"}' --json
  stonechat generate model.gguf -f main.rs --spec-type ngram-simple
  stonechat generate model.gguf -p \"Once upon a time\" -ngl 20 --device wgpu";

/// Arguments of `stonechat generate`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelName,
    /// Prompt to complete; - is standard input
    ///
    /// Without a prompt and a file it is read from standard input, unless that is a terminal.
    #[arg(short, long, value_name = "TEXT", conflicts_with = "file", help_heading = INPUT)]
    prompt: Option<String>,
    /// File with the prompt
    #[arg(short, long, value_name = "FILE", help_heading = INPUT)]
    file: Option<PathBuf>,
    /// Process escape sequences in the prompt (\n, \r, \t, \', \", \\)
    #[arg(short, long, help_heading = INPUT)]
    escape: bool,
    /// Fill-in-the-middle: generate the text between the prompt and this
    #[arg(long, value_name = "TEXT", help_heading = INPUT)]
    suffix: Option<String>,
    /// Token healing: the prompt's last token may become a longer one
    #[arg(long, help_heading = INPUT)]
    heal: bool,
    #[command(flatten)]
    stop: StopArgs,
    /// Print one JSON object at the end
    #[arg(long, help_heading = OUTPUT)]
    json: bool,
    /// Top token probabilities to report, with --json
    #[arg(long, value_name = "N", default_value_t = 0, requires = "json", help_heading = OUTPUT)]
    n_probs: usize,
    /// Print special tokens
    #[arg(long, help_heading = OUTPUT)]
    special: bool,
    #[command(flatten)]
    context: ContextArgs,
    /// File to cache the prompt state (KV cache) for faster startup
    #[arg(long, value_name = "FILE", help_heading = CONTEXT)]
    prompt_cache: Option<PathBuf>,
    /// Shift the context when it is full instead of stopping
    ///
    /// The older half of the tokens after --keep is dropped.
    #[arg(long, help_heading = CONTEXT)]
    context_shift: bool,
    /// Number of prompt tokens to keep in a shift; -1 is all
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true, help_heading = CONTEXT)]
    keep: i64,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// Negative prompt of classifier-free guidance
    #[arg(long, value_name = "TEXT", requires = "cfg_scale", help_heading = GUIDANCE)]
    negative_prompt: Option<String>,
    /// Strength of classifier-free guidance; 1 disables
    #[arg(long, value_name = "X", requires = "negative_prompt", help_heading = GUIDANCE)]
    cfg_scale: Option<f32>,
    /// Number of beams of a beam search, instead of sampling
    #[arg(
        long,
        value_name = "N",
        conflicts_with_all = [
            "n_probs", "heal", "prompt_cache", "context_shift", "cfg_scale", "grammars", "spec_type", "model_draft"
        ],
        help_heading = GUIDANCE
    )]
    beams: Option<usize>,
    /// Length penalty: score = logprob / length^X
    #[arg(long, value_name = "X", default_value_t = 1.0, requires = "beams", help_heading = GUIDANCE)]
    length_penalty: f32,
    #[command(flatten)]
    speculation: SpeculationArgs,
    #[command(flatten)]
    run: RunArgs,
}

/// Completes the prompt.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    args.context.kv_type.check()?;
    let prompt = prompt(args)?;
    let path = args.model.find()?;
    args.speculation.check()?;
    let loaded = args.run.load(&path, |config| args.session(config).state(config))?;
    generate(args, &prompt, &loaded.model)
}

impl Args {
    /// Sizes of the session.
    fn session(&self, config: &Config) -> SessionOptions {
        let n_sequences = self.n_sequences();
        let options = SessionOptions { n_sequences, ..self.context.session(config) };
        self.speculation.session(options)
    }

    /// Number of KV cache sequences.
    fn n_sequences(&self) -> usize {
        match (self.beams, self.cfg_scale) {
            (Some(width), _) => 2 * width.clamp(1, MAX_BEAMS),
            (None, Some(_)) => 2,
            (None, None) => 1,
        }
    }
}

fn generate(args: &Args, prompt: &str, model: &Model) -> anyhow::Result<ExitCode> {
    let n_predict = args.stop.n_predict();
    let tokens = match &args.suffix {
        Some(suffix) => model.infill(prompt, suffix)?,
        None => model.tokenize_prompt(prompt),
    };
    if let Some(width) = args.beams {
        return search(args, model, &tokens, width, n_predict);
    }
    let mut options = options(args, model, tokens.len())?;
    options.n_predict = n_predict;
    let mut session = args.run.session(model, args.session(model.config()))?;
    let _draft_model = args.speculation.set_drafter(&args.run, &mut session)?;
    if let Some(path) = args.prompt_cache.as_ref().filter(|path| path.exists()) {
        pollster::block_on(session.restore(path))?;
    }
    let console = Console::new(args.run.quiet);
    let interrupted = interrupt_flag()?;
    let mut printed = Ok(());
    let completion = pollster::block_on(session.generate(&tokens, &options, &mut |event| {
        on_event(event, args, &console, &interrupted, &mut printed)
    }))
    .map_err(|error| with_context_advice(error, model.config()))?;
    console.end();
    printed?;
    if let Some(path) = &args.prompt_cache {
        pollster::block_on(session.save(path))?;
    }
    if args.json {
        let report = Report::new(model, &completion)?;
        print(&format!("{}\n", serde_json::to_string(&report)?))?;
    } else if !completion.text.ends_with('\n') {
        print("\n")?;
    }
    if completion.finish == Finish::ContextFull {
        let n_ctx = session.n_ctx();
        console.note(&format!(
            "the context of {n_ctx} tokens is full: --ctx-size raises it, --context-shift shifts it"
        ));
    }
    if args.run.verbose {
        console.note(&times(model, &completion));
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows an event; breaks after Ctrl-C or when standard output is closed.
fn on_event(
    event: Event<'_>,
    args: &Args,
    console: &Console,
    interrupted: &AtomicBool,
    printed: &mut std::io::Result<()>,
) -> ControlFlow<()> {
    match event {
        Event::Prompt { done, total } => {
            if done == 0 {
                console.begin("prompt", total as u64);
            }
            console.advance(done as u64);
        }
        Event::Text(text) if !args.json => {
            console.end();
            *printed = print(text);
        }
        Event::Text(_) => console.end(),
        _ => {}
    }
    if interrupted.load(Ordering::Relaxed) || printed.is_err() {
        return ControlFlow::Break(());
    }
    ControlFlow::Continue(())
}

fn prompt(args: &Args) -> anyhow::Result<String> {
    let text = match (&args.prompt, &args.file) {
        (Some(text), _) if text != "-" => text.clone(),
        (None, Some(path)) => read_text(path)?,
        (None, None) if std::io::stdin().is_terminal() => {
            bail!(usage_error!("no prompt: expected --prompt, --file or text on standard input"))
        }
        _ => read_text("-".as_ref())?,
    };
    Ok(if args.escape { unescape(&text) } else { text })
}

fn options(args: &Args, model: &Model, n_prompt: usize) -> anyhow::Result<GenerateOptions> {
    Ok(GenerateOptions {
        n_predict: None,
        sampling: args.sampling.options(model.tokenizer())?,
        grammar: args.sampling.grammar(model)?,
        stop: args.stop.reverse_prompt.clone(),
        n_probs: args.n_probs,
        post_sampling_probs: false,
        ignore_eos: args.sampling.ignore_eos,
        show_special: args.special,
        heal: args.heal,
        guidance: match (&args.negative_prompt, args.cfg_scale) {
            (Some(text), Some(scale)) => {
                Some(Guidance { negative: model.tokenize_prompt(text), scale })
            }
            _ => None,
        },
        on_full: if args.context_shift {
            OnFull::Shift { keep: usize::try_from(args.keep).unwrap_or(n_prompt) }
        } else {
            OnFull::Stop
        },
        ..GenerateOptions::default()
    })
}

fn search(
    args: &Args,
    model: &Model,
    prompt: &[u32],
    width: usize,
    n_predict: Option<usize>,
) -> anyhow::Result<ExitCode> {
    let n_predict =
        n_predict.ok_or(usage_error!("--beams: expected --n-predict with the longest text"))?;
    if !(1..=MAX_BEAMS).contains(&width) {
        bail!(usage_error!("--beams: expected 1 to {MAX_BEAMS}, got {width}"));
    }
    let mut session = args.run.session(model, args.session(model.config()))?;
    let options = BeamOptions { width, n_predict, length_penalty: args.length_penalty };
    let beams = pollster::block_on(session.beam_search(prompt, &options))
        .map_err(|error| with_context_advice(error, model.config()))?;
    if args.json {
        let beams: Vec<_> = beams
            .iter()
            .map(|beam| {
                serde_json::json!({"text": beam.text, "tokens": beam.tokens, "score": beam.score})
            })
            .collect();
        print(&format!("{}\n", serde_json::json!({ "beams": beams })))?;
    } else if let Some(best) = beams.first() {
        print(&format!("{}\n", best.text))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// JSON of `--json`.
#[derive(Serialize)]
struct Report<'a> {
    text: &'a str,
    tokens: &'a [u32],
    prompt_tokens: usize,
    cached_tokens: usize,
    finish: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    drafts: Option<Drafts>,
    seed: u64,
    timings: serde_json::Value,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    probs: Vec<Probs>,
}

/// Tokens of speculative decoding.
#[derive(Serialize)]
struct Drafts {
    proposed: usize,
    accepted: usize,
}

#[derive(Serialize)]
struct Times {
    prompt_ms: f64,
    prompt_tok_s: f64,
    decode_ms: f64,
    decode_tok_s: f64,
}

#[derive(Serialize)]
struct Probs {
    id: u32,
    logprob: f32,
    top: Vec<Top>,
}

#[derive(Serialize)]
struct Top {
    id: u32,
    piece: String,
    logit: f32,
    logprob: f32,
}

impl<'a> Report<'a> {
    fn new(model: &Model, completion: &'a Completion) -> serde_json::Result<Self> {
        let (times, drafts) = (rounded(&rates(completion))?, completion.drafts);
        let piece = |id| {
            let bytes = model.tokenizer().token_piece(id, true);
            String::from_utf8_lossy(bytes).into_owned()
        };
        let probs = |probs: &TokenProbs| Probs {
            id: probs.token,
            logprob: probs.logprob,
            top: probs
                .top
                .iter()
                .map(|t| Top {
                    id: t.token,
                    piece: piece(t.token),
                    logit: t.logit,
                    logprob: t.logprob,
                })
                .collect(),
        };
        Ok(Self {
            text: &completion.text,
            tokens: &completion.tokens,
            prompt_tokens: completion.prompt_tokens,
            cached_tokens: completion.cached_tokens,
            finish: completion.finish.name(),
            drafts: (drafts.proposed > 0)
                .then_some(Drafts { proposed: drafts.proposed, accepted: drafts.accepted }),
            seed: completion.seed,
            timings: times,
            probs: completion.probs.iter().map(probs).collect(),
        })
    }
}

fn rates(completion: &Completion) -> Times {
    let rate = |tokens: usize, ms: f64| if ms > 0.0 { tokens as f64 * 1e3 / ms } else { 0.0 };
    let timings = completion.timings;
    Times {
        prompt_ms: timings.prompt_ms,
        prompt_tok_s: rate(completion.prompt_tokens - completion.cached_tokens, timings.prompt_ms),
        decode_ms: timings.decode_ms,
        decode_tok_s: rate(completion.tokens.len(), timings.decode_ms),
    }
}

/// Formats the line of `--verbose`.
pub(super) fn times(model: &Model, completion: &Completion) -> String {
    let times = rates(completion);
    let drafts = match completion.drafts {
        DraftCounts { proposed: 0, .. } => String::new(),
        DraftCounts { proposed, accepted, .. } => {
            format!("; {accepted} of {proposed} draft tokens")
        }
    };
    format!(
        "{}: prompt {} tokens ({} cached) {:.0} ms, {:.1} tok/s; decode {} tokens {:.0} ms, {:.1} tok/s{drafts}; seed {}",
        model.describe(),
        completion.prompt_tokens,
        completion.cached_tokens,
        times.prompt_ms,
        times.prompt_tok_s,
        completion.tokens.len(),
        times.decode_ms,
        times.decode_tok_s,
        completion.seed
    )
}
