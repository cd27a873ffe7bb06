//! `stonechat listen`: speech in, text while it is spoken.
//!
//! [`input`] reads sound on a thread of its own, [`pcm`] makes samples of bytes, [`screen`] shows text
//! and [`clock`] measures how late it is.

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
use stonechat::nn::Backend;
use stonechat::whisper::{CancelToken, LiveEvent, LiveOptions, LiveStream, Options};

use super::console::Console;
use super::device::Work;
use super::interrupt::interrupt_flag;
use super::recognizer::{Recognizer, RecognizerArgs};
use super::vad::VadArgs;
use clock::Clock;
use input::{Input, Source};
#[cfg(not(feature = "microphone"))]
use no_microphone as microphone;
use pcm::PcmFormat;
use screen::{Screen, TextFormat};

/// Arguments of `stonechat listen`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// `-` for raw sound on standard input, or the name of a microphone [default: the system's microphone on a terminal, else standard input]
    #[arg(value_name = "SOURCE")]
    source: Option<String>,
    #[command(flatten)]
    recognizer: RecognizerArgs,
    /// Samples on standard input, little-endian
    #[arg(long, value_enum, default_value_t = PcmFormat::S16le)]
    format: PcmFormat,
    /// Their rate in Hz
    #[arg(long, value_name = "HZ", default_value_t = SAMPLE_RATE)]
    rate: u32,
    /// Their channels, which are mixed
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    channels: u16,
    /// txt, or json: an event on each line
    #[arg(short = 'f', long, value_enum, default_value_t = TextFormat::Txt)]
    output_format: TextFormat,
    /// New sound that the text is looked at again for
    #[arg(long, value_name = "SECONDS", default_value_t = LiveOptions::default().min_chunk_s)]
    chunk: f64,
    /// Look at the text after every chunk even when late: the same text each time
    #[arg(long)]
    every_chunk: bool,
    /// Sound that is kept to look at; more is cut where a sentence ends
    #[arg(long, value_name = "SECONDS", default_value_t = LiveOptions::default().trim_s)]
    buffer: f64,
    /// Whether the text so far is the prompt of what follows
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    condition_on_previous_text: bool,
    #[command(flatten)]
    vad: VadArgs,
    /// Print in the end how late words were, and the real-time factor
    #[arg(long)]
    latency: bool,
    /// Print nothing but the text and errors
    #[arg(short, long, conflicts_with = "latency")]
    quiet: bool,
}

/// Writes down what is said until the sound ends or ctrl-C.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let options = live_options(args)?;
    // A stream tells what is wrong with its options before anything is opened.
    let stream = LiveStream::new(options.clone())?;
    let source = Source::choose(args.source.as_deref(), args.format, args.rate, args.channels)?;
    let recognizer = args.recognizer.find()?;
    let file = ModelFile::open(recognizer.path())?;
    let listener = Listener { args, recognizer, file, source, stream, options: options.decoding };
    args.recognizer.run(listener)?;
    Ok(ExitCode::SUCCESS)
}

fn live_options(args: &Args) -> anyhow::Result<LiveOptions> {
    let defaults = LiveOptions::default();
    let decoding = args.recognizer.apply(Options {
        vad: args.vad.mode(),
        vad_options: args.vad.options(defaults.decoding.vad_options),
        condition_on_previous_text: args.condition_on_previous_text,
        ..defaults.decoding
    })?;
    Ok(LiveOptions { decoding, min_chunk_s: args.chunk, trim_s: args.buffer })
}

/// Everything but the device.
struct Listener<'a> {
    args: &'a Args,
    recognizer: Recognizer,
    file: ModelFile,
    source: Source,
    stream: LiveStream,
    options: Options,
}

impl Work for Listener<'_> {
    type Output = ();

    fn run<B: Backend>(self, backend: B) -> anyhow::Result<()> {
        let Self { args, recognizer, file, source, mut stream, options } = self;
        let console = Console::new(args.quiet);
        let options = Options { word_timestamps: true, ..options };
        // What is said while the model is loaded is not lost.
        let mut input = Input::open(source, &interrupt_flag()?)?;
        let model = recognizer.load(&file, backend, &console)?;
        // Its pages count as this process's memory.
        drop(file);
        let mut engine = recognizer.transcriber(model, &options, &CancelToken::new())?;
        console.note(&format!("listening to {}; ctrl-C ends", input.name()));
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
        Ok(())
    }
}
