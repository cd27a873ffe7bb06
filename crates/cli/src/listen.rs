//! `stonechat listen`: live transcription.
//!
//! [`input`] reads audio on a thread, [`pcm`] names the formats of standard input, [`screen`] prints text and [`clock`]
//! measures latency.

mod clock;
mod input;
#[cfg(feature = "microphone")]
mod microphone;
#[cfg(not(feature = "microphone"))]
mod no_microphone;
mod pcm;
mod screen;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::ensure;
use stonechat::audio::SAMPLE_RATE;
use stonechat::formats::ModelFile;
use stonechat::whisper::{LiveEvent, LiveOptions, LiveStream, Options, Transcriber};

use super::UsageError;
use super::console::Console;
use super::headings::{DECODING, INPUT, OPTIONS, OUTPUT, STREAMING};
use super::interrupt::interrupt_flag;
use super::recognizer::{ComputeArgs, RecognizerArgs};
use super::vad::VadArgs;
use clock::Clock;
use input::{Input, Source};
#[cfg(not(feature = "microphone"))]
use no_microphone as microphone;
use pcm::PcmFormat;
use screen::{Screen, TextFormat};

const EXAMPLES: &str = "\
Examples:
  stonechat listen
  arecord -q -f S16_LE -r 16000 -t raw | stonechat listen -
  ffmpeg -loglevel error -i talk.mp3 -f f32le -ac 2 -ar 48000 - |
    stonechat listen - --format f32le --channels 2 --rate 48000 -f json";

/// Arguments of `stonechat listen`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Args {
    /// - for raw PCM on standard input, or part of a microphone's name
    ///
    /// Without it: the system's microphone if standard input is a terminal, else standard input.
    #[arg(value_name = "SOURCE")]
    source: Option<String>,
    /// PCM sample format
    #[arg(long, value_enum, default_value_t = PcmFormat::S16le, help_heading = INPUT)]
    format: PcmFormat,
    /// Sample rate of standard input in Hz
    #[arg(long, value_name = "HZ", default_value_t = SAMPLE_RATE, help_heading = INPUT)]
    rate: u32,
    /// Number of channels of standard input, mixed to mono
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=64),
        help_heading = INPUT
    )]
    channels: u16,
    /// txt, or json: one event per line
    #[arg(
        short = 'f',
        long,
        value_name = "FORMAT",
        value_enum,
        hide_possible_values = true,
        default_value_t = TextFormat::Txt,
        help_heading = OUTPUT
    )]
    output_format: TextFormat,
    /// Print latency statistics and the real-time factor at the end
    #[arg(long, help_heading = OUTPUT)]
    latency: bool,
    /// Minimum audio chunk to process (seconds)
    ///
    /// Every chunk, the buffer is decoded again; words on which two decodings in a row agree are
    /// committed (LocalAgreement-2).
    #[arg(long, value_name = "SECONDS", default_value_t = LiveOptions::default().min_chunk_s, help_heading = STREAMING)]
    chunk: f64,
    /// Process every chunk even when late, for reproducible text
    #[arg(long, help_heading = STREAMING)]
    every_chunk: bool,
    /// Buffer trimming threshold (seconds)
    ///
    /// A longer buffer is trimmed at the end of a committed segment.
    #[arg(long, value_name = "SECONDS", default_value_t = LiveOptions::default().trim_s, help_heading = STREAMING)]
    buffer: f64,
    #[command(flatten)]
    recognizer: RecognizerArgs,
    /// Provide the previous text as a prompt for the following audio
    #[arg(
        long,
        value_name = "BOOL",
        default_value_t = true,
        action = clap::ArgAction::Set,
        hide_possible_values = true,
        help_heading = DECODING
    )]
    condition_on_previous_text: bool,
    #[command(flatten)]
    vad: VadArgs,
    #[command(flatten)]
    compute: ComputeArgs,
    /// Print nothing but the text and errors
    #[arg(short, long, conflicts_with = "latency", help_heading = OPTIONS)]
    quiet: bool,
}

/// Transcribes until the audio ends or Ctrl-C.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    args.compute.check()?;
    let options = live_options(args).map_err(UsageError::from_error)?;
    // Checks the options before anything is opened.
    let mut stream = LiveStream::new(options.clone()).map_err(UsageError::from_error)?;
    let source = Source::choose(args.source.as_deref(), args.format, args.rate, args.channels)
        .map_err(UsageError::from_error)?;
    let recognizer = args.recognizer.find(&args.compute)?;
    let file = ModelFile::open(&recognizer.path)?;
    recognizer.check_language(&file, &options.decoding)?;
    let console = Console::new(args.quiet);
    let devices = args.compute.open(&file, &console, args.latency)?;
    let options = Options { word_timestamps: true, ..options.decoding };
    // Opened first: audio is buffered while the model is loaded.
    let mut input = Input::open(source, &interrupt_flag()?)?;
    let model = recognizer.load(&file, &devices, &console)?;
    // The mapped pages count as memory of this process.
    drop(file);
    let mut engine = Transcriber::new(&model, &options, recognizer.kv_dtype)?;
    console.note(&format!("listening to {}; Ctrl-C ends", input.name()));
    let mut screen = Screen::new(args.output_format);
    let mut clock = Clock::default();
    let n_chunk = (args.chunk * f64::from(SAMPLE_RATE)).ceil() as usize;
    loop {
        let samples = input.next(n_chunk, args.every_chunk);
        let started = Instant::now();
        let is_end = samples.is_empty();
        let events = if is_end {
            stream.finish(&mut engine)?
        } else {
            stream.push(&mut engine, &samples)?
        };
        clock.advance(stream.seconds(), started.elapsed());
        for mut event in events {
            if let LiveEvent::Committed { words } = &mut event {
                clock.time_words(words);
            }
            screen.show(&event, stream.seconds())?;
        }
        if is_end {
            break;
        }
    }
    let summary = clock.summary(stream.seconds());
    screen.end(&summary)?;
    if args.latency {
        console.note(&summary.to_string());
    }
    let n_left = input.end()?;
    ensure!(
        n_left == 0,
        "standard input: expected whole samples of all channels, {} bytes each time, got {n_left} at the end",
        args.format.bytes() * usize::from(args.channels)
    );
    Ok(ExitCode::SUCCESS)
}

fn live_options(args: &Args) -> anyhow::Result<LiveOptions> {
    let defaults = LiveOptions::default();
    let decoding = args.recognizer.apply(Options {
        vad: args.vad.vad,
        vad_options: args.vad.options(defaults.decoding.vad_options),
        condition_on_previous_text: args.condition_on_previous_text,
        ..defaults.decoding
    })?;
    Ok(LiveOptions { decoding, min_chunk_s: args.chunk, trim_s: args.buffer })
}
