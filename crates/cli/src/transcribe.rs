//! `stonechat transcribe`: recordings in, text out.
//!
//! [`Args`] is what clap reads; [`files`] and [`speech`] have those about files and about voice activity,
//! word times and subtitles. [`inputs`] finds the recordings, [`results`] names what is made of them,
//! [`plan`] checks everything that can be wrong before work begins. [`batch`] does the work; [`output`]
//! writes text as it comes or files once they are whole; [`progress`], [`stages`] and [`summary`] tell
//! how far it is, where the time went and what became of each input.

mod batch;
mod files;
mod inputs;
mod output;
mod plan;
mod progress;
mod results;
mod speech;
mod stages;
mod summary;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use stonechat::formats::ModelFile;
use stonechat::nn::Backend;
use stonechat::whisper::{CancelToken, Options};

use super::console::Console;
use super::device::Work;
use super::interrupt::{INTERRUPTED, on_ctrl_c};
use super::recognizer::RecognizerArgs;
use batch::Done;
use files::FileArgs;
use plan::Plan;
pub(super) use plan::Threshold;
use speech::SpeechArgs;
use summary::Summary;

/// Arguments of `stonechat transcribe`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Audio or video files, folders of them, quoted patterns; `-` is standard input
    #[arg(required = true, value_name = "AUDIO")]
    audio: Vec<PathBuf>,
    #[command(flatten)]
    recognizer: RecognizerArgs,
    #[command(flatten)]
    files: FileArgs,
    /// What the text of the first window begins with
    #[arg(long, value_name = "TEXT")]
    prefix: Option<String>,
    /// Stop searching when this times the beam size of texts have ended
    #[arg(long, value_name = "X", default_value_t = Options::default().patience)]
    patience: f32,
    /// Exponent, 0 to 1, of Google's length penalty [default: compare texts by log-probability per token]
    #[arg(long, value_name = "ALPHA")]
    length_penalty: Option<f32>,
    /// Windows decoded side by side: faster, but a window may not know what was said before it
    #[arg(long, value_name = "N")]
    batch_size: Option<usize>,
    /// Temperature to start from, or all of them separated by commas
    #[arg(long, value_name = "T", default_value = "0")]
    temperature: String,
    /// Step to the next temperature after a failed window, up to 1; none to try once
    #[arg(long, value_name = "STEP", default_value = "0.2")]
    temperature_increment_on_fallback: Threshold,
    /// Candidates at temperatures above zero
    #[arg(long, visible_alias = "bo", value_name = "N", default_value_t = Options::default().best_of)]
    best_of: usize,
    /// Whether the text so far is the prompt of the next window
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    condition_on_previous_text: bool,
    /// A window whose text compresses better than this fails; none to accept all
    #[arg(long, value_name = "RATIO", default_value = "2.4", allow_negative_numbers = true)]
    compression_ratio_threshold: Threshold,
    /// A window whose mean log-probability is lower fails; none to accept all
    #[arg(long, value_name = "LOGPROB", default_value = "-1.0", allow_negative_numbers = true)]
    logprob_threshold: Threshold,
    /// A failing window more probably silent than this is skipped; none to skip none
    #[arg(long, value_name = "P", default_value = "0.6", allow_negative_numbers = true)]
    no_speech_threshold: Threshold,
    /// Ask for text without timestamps: one segment for each window of 30 s
    #[arg(long)]
    no_timestamps: bool,
    /// Tokens never to choose, separated by commas; -1 is all symbols that are not speech, "" is none
    #[arg(long, value_name = "IDS", default_value = "-1", allow_hyphen_values = true)]
    suppress_tokens: String,
    /// Never start a window with a blank
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    suppress_blank: bool,
    /// Never choose a run of so many tokens twice in a window; 0 to choose freely
    #[arg(long, value_name = "N", default_value_t = 0)]
    no_repeat_ngram_size: usize,
    /// Most tokens of a window [default: half of the decoder's context]
    #[arg(long, value_name = "N")]
    max_new_tokens: Option<usize>,
    /// Seed of the sampler used at temperatures above zero
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    speech: SpeechArgs,
    /// Print the time of each stage
    #[arg(short, long)]
    verbose: bool,
    /// Print nothing but the text and errors
    #[arg(short, long, conflicts_with = "verbose")]
    quiet: bool,
}

/// Transcribes every input; one that fails does not stop the others.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let plan = Plan::check(args)?;
    // Opened before the first recording is decoded: a bad file shows at once.
    let file = ModelFile::open(plan.recognizer.path())?;
    args.recognizer.run(Inputs { plan: &plan, file })
}

/// Every input of a command line.
struct Inputs<'a> {
    plan: &'a Plan,
    file: ModelFile,
}

impl Work for Inputs<'_> {
    type Output = ExitCode;

    fn run<B: Backend>(self, backend: B) -> anyhow::Result<ExitCode> {
        let Self { plan, file } = self;
        let started = Instant::now();
        let console = Console::with_bar(plan.quiet, plan.shows_progress);
        plan.notes.iter().for_each(|note| console.note(note));
        let cancel = CancelToken::new();
        cancel_on_ctrl_c(&cancel)?;
        let Done { outcomes, report } = batch::run(plan, file, backend, &console, &cancel)?;
        let summary = Summary::new(outcomes, started.elapsed().as_secs_f64());
        if plan.verbose {
            console.note(&report);
        }
        if plan.tasks.len() > 1 || cancel.is_cancelled() {
            console.note(&summary.line());
        }
        if let Some(path) = &plan.summary {
            summary.write(path)?;
        }
        Ok(match summary.totals {
            _ if cancel.is_cancelled() => ExitCode::from(INTERRUPTED),
            ref totals if totals.failed > 0 => ExitCode::FAILURE,
            _ => ExitCode::SUCCESS,
        })
    }
}

/// Ctrl-C ends the work after what is being decoded.
fn cancel_on_ctrl_c(cancel: &CancelToken) -> anyhow::Result<()> {
    let cancel = cancel.clone();
    on_ctrl_c(move || {
        // A second one, while the first was not answered, ends the program.
        if cancel.is_cancelled() {
            std::process::exit(INTERRUPTED.into());
        }
        cancel.cancel();
    })
}
