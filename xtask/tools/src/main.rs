//! The verbs of `cargo xtask` that link the engine: `exactness`, `synth`, `templates` and `wer`.
#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool reports by printing"
)]

mod exactness;
mod synth;
mod templates;
mod wer;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use xtask::{in_parallel, models, peers, shell, venv};

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Compare texts, logits and word times with llama.cpp and faster-whisper, by device and weight type
    Exactness(exactness::ExactnessArgs),
    /// Write a GGUF file of random weights in the shape of a real model
    Synth(synth::SynthArgs),
    /// Compare rendered chat templates with jinja2
    Templates(templates::TemplatesArgs),
    /// Measure the word error rate over a manifest of recordings
    Wer(wer::WerArgs),
}

fn main() -> ExitCode {
    let result = match Cli::parse().verb {
        Verb::Exactness(args) => exactness::run(&args),
        Verb::Synth(args) => synth::run(&args),
        Verb::Templates(args) => templates::run(&args),
        Verb::Wer(args) => wer::run(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
