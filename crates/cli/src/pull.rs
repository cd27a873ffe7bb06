//! `stonechat pull`: downloads models.

use std::ffi::OsStr;
use std::io::{self, IsTerminal};

use clap_complete::ArgValueCompleter;
use stonechat::{CATALOG, Error};

use super::completions::names;
use super::console::{Console, print_note, wrap};
use super::find_model;

const EXAMPLES: &str = "\
Examples:
  stonechat pull large-v3-turbo
  stonechat pull base-q5_1
  stonechat pull qwen3:0.6b
  stonechat pull bartowski/SmolLM2-135M-Instruct-GGUF:Q8_0
  stonechat pull Qwen/Qwen2.5-0.5B-Instruct";

/// Completes names of installed models, and those of the catalog.
fn model_names() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| names(current, |_| true))
}

/// Arguments of `stonechat pull`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Args {
    /// Model names: base, qwen3:0.6b, user/repo or user/repo:TYPE
    ///
    /// `stonechat models --available` lists the short ones. base-q5_1, ggml-base and the like are
    /// whisper.cpp's files. From a repository with several GGUF files, the Q4_K_M one is taken
    /// unless another type is named.
    #[arg(required = true, value_name = "NAME", add = model_names())]
    names: Vec<String>,
    /// Print nothing but errors
    #[arg(short, long)]
    quiet: bool,
}

/// Downloads the models that are not installed, and prints the path of each.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let console = Console::new(args.quiet);
    for name in &args.names {
        let path = find_model::pull(&console, name).inspect_err(list_names)?;
        super::print(&format!("{}\n", path.display()))?;
    }
    Ok(())
}

/// Prints the short names on a terminal, if a name resembles none of them.
fn list_names(error: &anyhow::Error) {
    let is_unlike = |error| matches!(error, &Error::UnknownName { suggestion: None, .. });
    if error.downcast_ref().is_some_and(is_unlike) && io::stderr().is_terminal() {
        let width = console::Term::stderr().size().1;
        let names = CATALOG.iter().map(|entry| entry.name).collect::<Vec<_>>().join(", ");
        print_note(&format!("short names:\n{}", wrap("  ", &names, usize::from(width))));
    }
}
