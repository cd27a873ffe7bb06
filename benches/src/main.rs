//! `stonechat-bench-worker`: measures this engine for a driver (`cargo xtask bench`), which asks on
//! standard input and reads answers from standard output; see [`stonechat_benches::protocol`].
#![forbid(unsafe_code)]

mod worker;

use std::io::{self, BufRead, Write};
use std::process::ExitCode;

use clap::Parser;
use stonechat_benches::protocol::Reply;
use stonechat_nn::Cpu;

use worker::Worker;

/// Measures this engine for `cargo xtask bench`.
#[derive(Debug, Parser)]
#[command(name = "stonechat-bench-worker", disable_version_flag = true)]
struct Args {
    /// Device that models run on
    #[arg(long, default_value = "cpu", value_parser = ["cpu"])]
    backend: String,
    /// Threads; 0 is one for each physical core
    #[arg(long, default_value_t = 0)]
    threads: usize,
}

fn main() -> ExitCode {
    let Args { backend: _, threads } = Args::parse();
    let served = Cpu::new(threads).map_err(anyhow::Error::from).and_then(serve);
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody is left to tell if this fails, too.
            let _ = writeln!(io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// An error and its causes, without those in its own text.
fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !line.contains(&cause) {
            let separator = if line.is_empty() { "" } else { ": " };
            line = format!("{line}{separator}{cause}");
        }
    }
    line
}

/// Answers requests until there are no more.
fn serve(backend: Cpu) -> anyhow::Result<()> {
    let mut worker = Worker::new(backend);
    for line in io::stdin().lock().lines() {
        let reply = match serde_json::from_str(&line?) {
            Ok(request) => worker.answer(request),
            Err(error) => Err(error.into()),
        };
        let reply = reply.unwrap_or_else(|error| Reply::Failed { error: one_line(&error) });
        let mut out = io::stdout().lock();
        writeln!(out, "{}", serde_json::to_string(&reply)?)?;
        out.flush()?;
    }
    Ok(())
}
