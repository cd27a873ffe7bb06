//! `stonechat pull`: downloads models.

use std::ffi::OsStr;
use std::io::{self, IsTerminal};

use clap_complete::ArgValueCompleter;
use stonechat::{CATALOG, Error};

use super::completions::names;
use super::console::{Console, print_note};
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
        let names = CATALOG.iter().map(|entry| entry.name);
        print_note(&format!("short names:\n{}", wrapped(names, usize::from(width))));
    }
}

/// Lines of at most `width` columns, if no name is longer, with commas between the names.
fn wrapped<'a>(names: impl Iterator<Item = &'a str>, width: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut names = names.peekable();
    while let Some(name) = names.next() {
        let comma = if names.peek().is_some() { "," } else { "" };
        match lines.last_mut() {
            Some(line) if line.len() + 1 + name.len() + comma.len() <= width => {
                line.push_str(&format!(" {name}{comma}"));
            }
            _ => lines.push(format!("  {name}{comma}")),
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::wrapped;

    #[test]
    fn names_are_wrapped() {
        let names = ["base", "tiny.en", "qwen3:0.6b"];
        assert_eq!(wrapped(names.into_iter(), 80), "  base, tiny.en, qwen3:0.6b");
        assert_eq!(wrapped(names.into_iter(), 16), "  base, tiny.en,\n  qwen3:0.6b");
        assert_eq!(wrapped(names.into_iter(), 3), "  base,\n  tiny.en,\n  qwen3:0.6b");
        assert_eq!(wrapped([].into_iter(), 80), "");
    }
}
