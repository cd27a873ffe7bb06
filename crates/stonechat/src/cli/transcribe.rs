//! `stonechat transcribe`: audio files in, text out.
//!
//! [`Args`] is what clap reads; [`plan`] checks it and says what to do; [`output`] writes text as
//! it comes or files once they are whole; [`stages`] sums up where the time went. [`speech`] has the
//! arguments about voice activity, word times and lines of subtitles.

mod output;
mod plan;
mod speech;
mod stages;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context;
use stonechat::audio::{self, Audio};
use stonechat::formats::ModelFile;
use stonechat::nn::Backend;
use stonechat::whisper::{CancelToken, Language, Options, Progress, Transcriber};

use super::console::Console;
use super::device::Work;
use super::load::with_cost;
use super::recognizer::RecognizerArgs;
use output::Output;
pub(super) use plan::Threshold;
use plan::{Input, Plan};
use speech::SpeechArgs;
use stages::Stages;

/// Arguments of `stonechat transcribe`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Audio or video files; `-` is standard input
    #[arg(required = true, value_name = "AUDIO")]
    audio: Vec<PathBuf>,
    #[command(flatten)]
    recognizer: RecognizerArgs,
    /// txt, srt, vtt, tsv, json, json-full, lrc, csv; several separated by commas [default: txt]
    #[arg(short = 'f', long, value_name = "FORMAT", value_delimiter = ',')]
    output_format: Vec<String>,
    /// Folder for the results instead of standard output
    #[arg(short, long, value_name = "FOLDER")]
    output_dir: Option<PathBuf>,
    /// What the text of the first window begins with
    #[arg(long, value_name = "TEXT")]
    prefix: Option<String>,
    /// Stop searching when this times the beam size of texts have ended
    #[arg(long, value_name = "X", default_value_t = Options::default().patience)]
    patience: f32,
    /// Exponent, 0 to 1, of Google's length penalty [default: compare texts by log-probability per token]
    #[arg(long, value_name = "ALPHA")]
    length_penalty: Option<f32>,
    /// Windows decoded side by side: faster, but none knows what was said in another
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
        transcribe_all(self.plan, self.file, backend)
    }
}

fn transcribe_all<B: Backend>(
    plan: &Plan,
    file: ModelFile,
    backend: B,
) -> anyhow::Result<ExitCode> {
    let mut job = Job {
        console: Console::new(plan.quiet),
        plan,
        backend,
        file: Some(file),
        stages: Stages::start(),
        engine: None,
    };
    let mut failed = false;
    for input in &plan.inputs {
        if let Err(error) = job.transcribe(input)? {
            failed = true;
            // The message of a file that cannot be opened names it already.
            let named = error.to_string().contains(&input.name());
            job.console.error(&if named { error } else { error.context(input.name()) });
        }
    }
    if let (true, Some(engine)) = (plan.verbose, &job.engine) {
        let device = engine.model().backend();
        let load = with_cost(&device.describe(), "; ", device.load_cost());
        job.console.note(&job.stages.report(engine.timings(), &load));
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// What is kept between inputs.
struct Job<'a, B: Backend> {
    console: Console,
    backend: B,
    plan: &'a Plan,
    /// Open until the weights are loaded: its pages count as this process's memory.
    file: Option<ModelFile>,
    stages: Stages,
    /// Loaded when the first recording is there.
    engine: Option<Transcriber<B>>,
}

impl<B: Backend> Job<'_, B> {
    /// Transcribes one input; the outer error concerns every input, the inner one only this.
    fn transcribe(&mut self, input: &Input) -> anyhow::Result<anyhow::Result<()>> {
        let started = Instant::now();
        let audio = match decode(input) {
            Ok(audio) => audio,
            Err(error) => return Ok(Err(error)),
        };
        self.stages.audio += started.elapsed();
        self.stages.audio_s += audio.duration_s();
        if audio.source.n_bad_packets > 0 {
            let n = audio.source.n_bad_packets;
            self.console.note(&format!("{}: {n} damaged packets were skipped", input.name()));
        }
        if self.engine.is_none() {
            let started = Instant::now();
            self.engine = Some(self.load()?);
            self.stages.load = started.elapsed();
        }
        let Some(engine) = &mut self.engine else { return Ok(Ok(())) };
        Ok(transcribe(engine, self.plan, &self.console, input, &audio))
    }

    fn load(&mut self) -> anyhow::Result<Transcriber<B>> {
        let file = self.file.take().context("the model was closed after an earlier failure")?;
        let stop = (&self.console, &CancelToken::new());
        self.plan.recognizer.load(file, self.backend.clone(), &self.plan.options, stop)
    }
}

fn decode(input: &Input) -> anyhow::Result<Audio> {
    // A decoder that panics on a damaged file is contained and reported as an error; the default
    // hook would print a second message.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let audio = match input {
        Input::StandardInput => audio::decode_reader(io::stdin().lock()),
        Input::File(path) => audio::decode_file(path),
    };
    std::panic::set_hook(hook);
    Ok(audio?)
}

fn transcribe<B: Backend>(
    engine: &mut Transcriber<B>,
    plan: &Plan,
    console: &Console,
    input: &Input,
    audio: &Audio,
) -> anyhow::Result<()> {
    let mut output = Output::begin(&plan.destination, plan.layout, input, plan.inputs.len() > 1)?;
    let mut written = Ok(());
    console.begin(&input.name(), audio.samples.len() as u64);
    let result = engine.transcribe(&audio.samples, &plan.options, &mut |news| match news {
        Progress::Language(language, probability) => {
            console.note(&detected(input, language, probability, plan.inputs.len() > 1));
        }
        Progress::Segment(segment) if written.is_ok() => {
            written = console.beside_bar(|| output.segment(segment));
        }
        Progress::Segment(_) => {}
        Progress::Position(done, _) => console.advance(done as u64),
    });
    console.end();
    let transcript = result?;
    written?;
    output.end(&transcript)
}

fn detected(input: &Input, language: Language, probability: f32, several: bool) -> String {
    let percent = probability * 100.0;
    let name = if several { format!("{}: ", input.name()) } else { String::new() };
    format!("{name}detected language: {} ({}, {percent:.0}%)", language.name, language.code)
}
