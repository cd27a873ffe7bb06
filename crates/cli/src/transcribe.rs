//! `stonechat transcribe`: audio files to text.
//!
//! Flags: [`files`], [`decoding`], [`speech`]. [`plan`] checks them, with [`inputs`] finding the recordings,
//! [`left_out`] reporting other files, [`results`] naming the output files and [`records`] telling which are up to date.
//! [`batch`] reads ahead and transcribes, [`output`] writes. [`progress`] is the bar, [`remarks`] the notes on a
//! recording, [`stages`] the timing table of `-v`, [`summary`] the JSON of `--summary`.

mod batch;
mod decoding;
mod files;
mod inputs;
mod left_out;
mod output;
mod plan;
mod progress;
mod records;
mod remarks;
mod results;
mod speech;
mod stages;
mod summary;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::anyhow;
use stonechat::formats::ModelFile;
use stonechat::whisper::CancelToken;

use super::console::Console;
use super::headings::{DEVICE, OPTIONS};
use super::interrupt::{INTERRUPTED, on_ctrl_c};
use super::recognizer::{ComputeArgs, MULTILINGUAL, Recognizer, RecognizerArgs};
use batch::Done;
use decoding::DecodingArgs;
use files::FileArgs;
use plan::Plan;
use speech::SpeechArgs;
use summary::Summary;

const EXAMPLES: &str = "\
Examples:
  stonechat transcribe talk.mp3
  stonechat transcribe -m large-v3-turbo -l de -f srt,json -o transcripts recordings/
  stonechat transcribe -f vtt --max-line-width 42 --max-line-count 2 film.mkv
  ffmpeg -loglevel error -i talk.mp4 -f wav - | stonechat transcribe --task translate -";

/// Arguments of `stonechat transcribe`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Args {
    /// Audio or video files, folders or quoted glob patterns; - is standard input
    #[arg(required = true, value_name = "AUDIO")]
    audio: Vec<PathBuf>,
    #[command(flatten)]
    files: FileArgs,
    #[command(flatten)]
    recognizer: RecognizerArgs,
    #[command(flatten)]
    decoding: DecodingArgs,
    #[command(flatten)]
    speech: SpeechArgs,
    #[command(flatten)]
    compute: ComputeArgs,
    /// Number of windows to decode in one batch
    ///
    /// Faster, but the text of one window is not the prompt of the next: a long recording is split
    /// at quiet positions into independent chunks.
    #[arg(long, value_name = "N", help_heading = DEVICE)]
    batch_size: Option<usize>,
    /// Number of inputs to transcribe in parallel
    ///
    /// Inputs share the weights and divide the CPU threads; a GPU decodes them in one batch.
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = DEVICE)]
    jobs: usize,
    /// Print the time of each stage
    #[arg(short, long, help_heading = OPTIONS)]
    verbose: bool,
    /// Print nothing but the text and errors
    #[arg(short, long, conflicts_with = "verbose", help_heading = OPTIONS)]
    quiet: bool,
}

/// Transcribes every input; one that fails does not stop the others.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let plan = Plan::check(args)?;
    // Opened before the first recording is decoded, so that a bad file fails at once.
    let file = ModelFile::open(&plan.recognizer.path)?;
    plan.recognizer.check_language(&file, &plan.options)?;
    let started = Instant::now();
    let console = Console::with_bar(args.quiet, !args.files.no_progress);
    if let Some(note) = model_note(&plan, &file) {
        console.note(&note);
    }
    plan.notes.iter().for_each(|note| console.note(note));
    for folder in &plan.unreadable {
        console.error(&anyhow!("{folder}"));
    }
    let cancel = CancelToken::new();
    // Transcription ends after the current decoding step.
    let cancelled = cancel.clone();
    on_ctrl_c(move || {
        let is_second = cancelled.is_cancelled();
        cancelled.cancel();
        is_second
    })?;
    let open = |file: &ModelFile| args.compute.open(file, &console, args.verbose);
    // Dropping the devices prints their profile, after everything else.
    let Done { outcomes, report, devices: _devices } =
        batch::run(&plan, file, open, &console, &cancel)?;
    let summary = Summary::new(outcomes, started.elapsed().as_secs_f64());
    if args.verbose {
        console.note(&report);
    }
    if plan.tasks.len() > 1 || cancel.is_cancelled() {
        console.note(&summary.line());
    }
    if let Some(path) = &args.files.summary {
        summary.write(path)?;
    }
    Ok(match summary.totals {
        _ if cancel.is_cancelled() => ExitCode::from(INTERRUPTED),
        ref totals if totals.failed > 0 || !plan.unreadable.is_empty() => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    })
}

/// The model in use, where the user may not know it: one found without `-m` that is English-only.
fn model_note(plan: &Plan<'_>, file: &ModelFile) -> Option<String> {
    let Plan { args, recognizer, options, .. } = plan;
    let is_limited =
        recognizer.is_default && options.language.is_none() && Recognizer::is_english_only(file);
    if is_limited {
        Some(format!("model: `{}`, English-only; {MULTILINGUAL}", recognizer.name()))
    } else {
        args.verbose.then(|| format!("model: `{}`", recognizer.path.display()))
    }
}
