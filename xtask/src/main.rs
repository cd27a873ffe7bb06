//! Workspace automation: `cargo xtask VERB`, one file per verb.
// But for `ptx/nvrtc.rs`.
#![deny(unsafe_code)]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool reports by printing"
)]

mod bench;
mod build_std;
mod cargo_deny;
mod ci;
mod client_test;
mod cross;
mod dist;
mod fuzz;
mod golden;
mod gpu_test;
mod lines;
mod load;
mod mutants;
mod packaging;
mod picture;
mod ptx;
mod results;
mod scripted_model;
mod server_process;
mod setup;
mod soak;
mod test;
mod test_code;
mod tidy;
mod wasm;
mod web;

use std::ffi::OsString;
use std::process::{Command, ExitCode};

use clap::{Parser, Subcommand};
use xtask::{exactness, in_parallel, machine, models, peers, shell, venv};

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
    /// Check `stonechat serve` with unmodified clients
    ClientTest(client_test::ClientTestArgs),
    /// Test the kernels for ARM in an emulator
    CrossTest(cross::CrossArgs),
    /// Check licences, duplicate versions and sources of the dependencies with cargo-deny
    Deny,
    /// Pack the program with completions, man pages and licences into an archive
    Dist(dist::DistArgs),
    /// Compare texts, logits and word times with llama.cpp and faster-whisper, by device and weight type
    Exactness(ToolArgs),
    /// Fuzz one parser, or each in turn
    Fuzz(fuzz::FuzzArgs),
    /// Regenerate the golden references with the other implementation that they come from
    Golden(golden::GoldenArgs),
    /// Test the CUDA or wgpu backend on a GPU, down to the text of real models
    GpuTest(gpu_test::GpuTestArgs),
    /// Count the lines of each package without its tests; list the longest files and functions
    Lines(lines::LinesArgs),
    /// Measure servers under load: streams, aborts, uploads, beside a peer in turns
    Load(Box<load::LoadArgs>),
    /// Install models from their Python packages
    Models(models::ModelsArgs),
    /// Test that the tests of the decoding rules fail when the rules are wrong
    Mutants(mutants::MutantsArgs),
    /// Build the page that the server embeds
    Page(web::PageArgs),
    /// Draw the terminal of the README from a real run
    Picture,
    /// Compile the CUDA kernels of the crates for every architecture
    Ptx(ptx::PtxArgs),
    /// Write the tables of README.md and of docs from the committed runs
    Results(results::ResultsArgs),
    /// Install what the tests need: the models tiny.en and base
    Setup,
    /// Run `stonechat serve` under mixed load and check answers, memory, KV pages and metrics
    Soak(Box<soak::SoakArgs>),
    /// Write a GGUF file of random weights in the shape of a real model
    Synth(ToolArgs),
    /// Compare rendered chat templates with jinja2
    Templates(ToolArgs),
    /// Set up, run every test of the workspace and print the totals
    Test(test::TestArgs),
    /// Check the rules of the source tree that no other tool knows
    Tidy,
    /// Check that every library crate compiles for wasm32-unknown-unknown
    Wasm(wasm::WasmArgs),
    /// Link the binaries for browsers and pack the npm package
    Web(web::WebArgs),
    /// Measure the word error rate over a manifest of recordings
    Wer(ToolArgs),
}

/// Arguments of a verb of `xtask-tools`.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
struct ToolArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

/// Runs a verb that links the engine: a package of its own, so that the other verbs start without
/// building the engine first. It is built with the features of the workspace, as the tests are.
fn run_tool(verb: &str, args: &ToolArgs) -> anyhow::Result<()> {
    let mut build = shell::cargo();
    build.args(["build", "--quiet", "--workspace", "--bin", "xtask-tools"]);
    shell::status(&mut build)?;
    let name = format!("xtask-tools{}", std::env::consts::EXE_SUFFIX);
    // In the caller's folder, which the paths among the arguments are relative to.
    let mut tool = Command::new(shell::target_dir().join("debug").join(name));
    shell::status(tool.arg(verb).args(&args.args))
}

fn main() -> ExitCode {
    let result = match Cli::parse().verb {
        Verb::Bench(args) => bench::run(&args),
        Verb::Ci(args) => ci::run(&args),
        Verb::ClientTest(args) => client_test::run(&args),
        Verb::CrossTest(args) => cross::run(&args),
        Verb::Deny => cargo_deny::run(),
        Verb::Dist(args) => dist::run(&args),
        Verb::Exactness(args) => run_tool("exactness", &args),
        Verb::Fuzz(args) => fuzz::run(&args),
        Verb::Golden(args) => golden::run(&args),
        Verb::GpuTest(args) => gpu_test::run(&args),
        Verb::Lines(args) => lines::run(&args),
        Verb::Load(args) => load::run(&args),
        Verb::Models(args) => models::run(&args),
        Verb::Mutants(args) => mutants::run(&args),
        Verb::Page(args) => web::run_page(&args),
        Verb::Picture => picture::run(),
        Verb::Ptx(args) => ptx::run(&args),
        Verb::Results(args) => results::run(&args),
        Verb::Setup => setup::run(),
        Verb::Soak(args) => soak::run(&args),
        Verb::Synth(args) => run_tool("synth", &args),
        Verb::Templates(args) => run_tool("templates", &args),
        Verb::Test(args) => test::run(&args),
        Verb::Tidy => tidy::run(),
        Verb::Wasm(args) => wasm::run(&args),
        Verb::Web(args) => web::run(&args),
        Verb::Wer(args) => run_tool("wer", &args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
