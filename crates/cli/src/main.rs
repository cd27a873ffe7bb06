//! The `stonechat` command line: one file per verb, with its arguments and a `run` function.
//!
//! Exit codes: 0 success, 1 error (one line on standard error), 2 usage error, 130 interrupted.
#![forbid(unsafe_code)]

mod aliases;
mod console;
mod convert;
mod device;
mod inspect;
mod interrupt;
mod listen;
mod llm;
mod load;
mod models;
mod pull;
mod quantize;
mod recognizer;
mod transcribe;
mod vad;
mod write_model;

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::LazyLock;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use stonechat::compute::simd::Isa;

/// Speech to text and language models, offline.
#[derive(Debug, Parser)]
#[command(name = "stonechat", version = VERSION.as_str())]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Transcribe or translate audio files
    Transcribe(Box<transcribe::Args>),
    /// Write down speech as it comes: from a microphone or as raw sound on standard input
    Listen(Box<listen::Args>),
    /// Continue a text with a language model
    Generate(Box<llm::generate::Args>),
    /// Talk with a language model
    Chat(Box<llm::chat::Args>),
    /// Print the tokens of a text
    Tokenize(llm::tokenize::Args),
    /// Measure how well a language model predicts a text
    Perplexity(llm::perplexity::Args),
    /// Measure the speed of language models
    Bench(llm::bench::Args),
    /// Download a model from the Hugging Face hub
    Pull(pull::Args),
    /// List the installed models and where they are
    Models(models::Args),
    /// List what models can run on
    Devices(device::Args),
    /// Print what is in a model or audio file
    Inspect(inspect::Args),
    /// Convert a model to GGUF or whisper.cpp's format
    Convert(convert::Args),
    /// Write a model with another weight type
    Quantize(quantize::Args),
}

/// Version, platform and the instruction set that the kernels use here.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let isa = Isa::best().map_or_else(|error| error.to_string(), |isa| isa.name().to_owned());
    let (arch, os) = (std::env::consts::ARCH, std::env::consts::OS);
    format!("{} ({arch} {os}, {isa})", env!("CARGO_PKG_VERSION"))
});

fn main() -> ExitCode {
    let spelled = match aliases::spelled_out(std::env::args_os()) {
        Ok(spelled) => spelled,
        Err(message) => Cli::command().error(ErrorKind::UnknownArgument, message).exit(),
    };
    let cli = Cli::parse_from(spelled.args);
    spelled.notes.iter().for_each(|note| console::print_note(note));
    let result = match cli.verb {
        Verb::Transcribe(args) => transcribe::run(&args),
        Verb::Listen(args) => listen::run(&args),
        Verb::Generate(args) => llm::generate::run(&args),
        Verb::Chat(args) => llm::chat::run(&args),
        Verb::Tokenize(args) => llm::tokenize::run(&args).map(|()| ExitCode::SUCCESS),
        Verb::Perplexity(args) => llm::perplexity::run(&args).map(|()| ExitCode::SUCCESS),
        Verb::Bench(args) => llm::bench::run(&args).map(|()| ExitCode::SUCCESS),
        Verb::Pull(args) => pull::run(&args).map(|()| ExitCode::SUCCESS),
        Verb::Models(args) => models::run(&args).map(|()| ExitCode::SUCCESS),
        Verb::Devices(args) => device::run(&args).map(|()| ExitCode::SUCCESS),
        Verb::Inspect(args) => inspect::run(&args).map(|()| ExitCode::SUCCESS),
        Verb::Convert(args) => convert::run(&args).map(|()| ExitCode::SUCCESS),
        Verb::Quantize(args) => quantize::run(&args).map(|()| ExitCode::SUCCESS),
    };
    result.unwrap_or_else(|error| {
        if error.downcast_ref::<io::Error>().is_some_and(is_broken_pipe) {
            return ExitCode::SUCCESS;
        }
        console::print_error(&error);
        ExitCode::FAILURE
    })
}

/// Whether the reader of standard output has gone, for example `head`: no failure of ours.
fn is_broken_pipe(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe
}

/// Writes to standard output at once.
fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// Bytes as a person reads them.
fn megabytes(bytes: u64) -> String {
    if bytes < 100_000 {
        format!("{:.1} kB", bytes as f64 / 1e3)
    } else {
        format!("{:.1} MB", bytes as f64 / 1e6)
    }
}
