//! Commands in the documents' code blocks: `cargo xtask` parses with its flags, each verb of `stonechat` exists.

use clap::CommandFactory;

use super::SourceFile;
use crate::Cli;

pub(super) fn check(files: &[SourceFile]) -> Vec<String> {
    let stonechat: Vec<String> = files
        .iter()
        .filter(|file| file.path.starts_with("crates/cli/src/"))
        .flat_map(|file| subcommands(&file.code))
        .collect();
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.path.ends_with(".md")) {
        for (line, command) in commands(&file.text) {
            match command {
                Command::Xtask(words) => {
                    let parsed = Cli::command().try_get_matches_from(&words);
                    if let Some(error) = parsed.err().filter(|error| error.use_stderr()) {
                        let reason = error.to_string();
                        let reason = reason.lines().next().unwrap_or_default().to_owned();
                        findings.push(
                            file.finding(line, format!("cargo {}: {reason}", words.join(" "))),
                        );
                    }
                }
                Command::Stonechat(verb) => {
                    if !stonechat.iter().any(|name| name == verb) && verb != "help" {
                        findings.push(file.finding(line, format!("no such verb: `{verb}`")));
                    }
                }
            }
        }
    }
    findings
}

#[derive(Debug, PartialEq, Eq)]
enum Command<'a> {
    /// From `xtask` on.
    Xtask(Vec<&'a str>),
    Stonechat(&'a str),
}

/// The commands in the fenced blocks of `markdown`, with their lines. A backslash at the end of a line continues it.
fn commands(markdown: &str) -> Vec<(usize, Command<'_>)> {
    let mut found = Vec::new();
    let mut in_block = false;
    // Line and offset of a command with a backslash at the end.
    let mut begun = None;
    let mut end = 0;
    for (i, line) in markdown.split_inclusive('\n').enumerate() {
        let (start, offset) = begun.take().unwrap_or((i, end));
        end += line.len();
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if in_block && line.trim_end().ends_with('\\') {
            begun = Some((start, offset));
        } else if in_block {
            found.extend(command(&markdown[offset..end]).map(|command| (start + 1, command)));
        }
    }
    found
}

/// The verb of a command line; options before a verb are not followed.
fn command(line: &str) -> Option<Command<'_>> {
    let words = line.trim_start().trim_start_matches("$ ").split_whitespace();
    let mut words = words.filter(|word| *word != "\\").peekable();
    // `NAME=value` before a program sets its environment.
    while words.peek().is_some_and(|word| word.contains('=') && !word.starts_with('-')) {
        words.next();
    }
    let program = words.next()?;
    let is_verb = |word: &&str| word.starts_with(|c: char| c.is_ascii_lowercase());
    match program.rsplit('/').next()? {
        "stonechat" => words.next().filter(is_verb).map(Command::Stonechat),
        "cargo" => match words.next()? {
            "xtask" => Some(Command::Xtask(std::iter::once("xtask").chain(words).collect())),
            "run" => {
                words.find(|word| *word == "--")?;
                words.next().filter(is_verb).map(Command::Stonechat)
            }
            _ => None,
        },
        _ => None,
    }
}

/// The variants, in kebab case, of each enum of `code` that derives clap's `Subcommand`.
fn subcommands(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for after in code.split("Subcommand").skip(1) {
        // An import of the name has no enum before its semicolon.
        let Some(open) = after.find('{') else { continue };
        let head = &after[..open];
        if !head.contains("enum ") || head.contains(';') {
            continue;
        }
        let mut depth = 0;
        let mut variant = String::new();
        let mut expects_name = true;
        for c in after[open..].chars() {
            match c {
                '{' | '(' | '[' => depth += 1,
                '}' | ')' | ']' => depth -= 1,
                ',' if depth == 1 => expects_name = true,
                _ => {}
            }
            if depth == 0 {
                break;
            }
            if depth == 1 && expects_name && c.is_alphanumeric() {
                variant.push(c);
            } else if !variant.is_empty() {
                found.push(kebab(&std::mem::take(&mut variant)));
                expects_name = false;
            }
        }
    }
    found
}

fn kebab(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if c.is_uppercase() && !out.is_empty() {
            out.push('-');
        }
        out.extend(c.to_lowercase());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_code_blocks_are_found() {
        let text = "cargo xtask none\n```sh\n$ cargo xtask test \\\n  --x\nSTONECHAT_ISA=scalar stonechat transcribe a.wav\n\
                    cargo run --release -- inspect f\nstonechat --help\ncargo build\n```\nstonechat none\n";
        let found: Vec<_> = commands(text).into_iter().map(|(_, command)| command).collect();
        let expected = [
            Command::Xtask(vec!["xtask", "test", "--x"]),
            Command::Stonechat("transcribe"),
            Command::Stonechat("inspect"),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn subcommands_are_read_from_the_enum() {
        let code = "use clap::{Parser, Subcommand};\nstruct A { x: u8 }\n#[derive(Debug, Subcommand)]\nenum Verb {\n\
                    #[command(name)]\nTranscribe(Args),\nPull { name: String, x: u8 },\nListModels,\n}\n";
        assert_eq!(subcommands(code), ["transcribe", "pull", "list-models"]);
    }
}
