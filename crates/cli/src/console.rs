//! Standard error: notes, errors and, on a terminal, a progress bar.

use std::fmt;
use std::io::{self, IsTerminal, Write};

use indicatif::{HumanDuration, ProgressBar, ProgressState, ProgressStyle};

use super::log;

/// Prints an error with its causes as one line; returns the line.
pub(super) fn print_error(error: &anyhow::Error) -> String {
    let line = one_line(&with_causes(error));
    // Standard error may be closed.
    let _ = writeln!(io::stderr(), "error: {line}");
    line
}

/// Prints a line that is no error.
pub(super) fn print_note(text: &str) {
    // Standard error may be closed.
    let _ = writeln!(io::stderr(), "{text}");
}

/// Joins the message with those causes that it does not quote already.
fn with_causes(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Joins the lines of a message with spaces.
fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join(" ")
}

/// Lines of at most `width` characters, unless a word is longer; those after the first are indented by the width of `prefix`.
pub(super) fn wrap(prefix: &str, words: &str, width: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    for word in words.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            Some(_) => lines.push(format!("{:indent$}{word}", "", indent = prefix.len())),
            None => lines.push(format!("{prefix}{word}")),
        }
    }
    lines.join("\n")
}

/// Template of a bar that counts steps.
const STEPS: &str = "{msg} {wide_bar} {percent:>3}% elapsed {elapsed_precise} (eta {eta})";

/// Messages and progress bar of a verb.
#[derive(Debug)]
pub(super) struct Console {
    quiet: bool,
    bar: Option<ProgressBar>,
}

impl Console {
    /// Console with a progress bar if standard error is a terminal, unless `quiet`.
    pub(super) fn new(quiet: bool) -> Self {
        Self::with_bar(quiet, true)
    }

    /// As [`new`](Self::new), without a bar unless `has_bar`.
    pub(super) fn with_bar(quiet: bool, has_bar: bool) -> Self {
        let has_bar = has_bar && !quiet && io::stderr().is_terminal() && !log::is_on_stderr();
        let bar = has_bar.then(ProgressBar::no_length);
        Self { quiet, bar }
    }

    /// Starts the bar of a stage of `length` steps.
    pub(super) fn begin(&self, stage: &str, length: u64) {
        self.begin_as(STEPS, stage, length);
    }

    /// Runs `work` with a bar of the fraction done, 0 to 1, that it reports.
    pub(super) fn stage<R>(&self, stage: &str, work: impl FnOnce(&mut dyn FnMut(f32)) -> R) -> R {
        const STEPS: f32 = 1000.0;
        self.begin(stage, STEPS as u64);
        let result = work(&mut |done| self.advance((done * STEPS) as u64));
        self.end();
        result
    }

    /// Starts the bar of a stage, drawn by a template of [`ProgressStyle`].
    pub(super) fn begin_as(&self, template: &str, stage: &str, length: u64) {
        if let Some(bar) = &self.bar {
            bar.reset();
            Self::draw(bar, template, stage, 0, length);
        }
    }

    /// Draws the bar of a stage at `position` of `length` steps; `length` may change between calls.
    pub(super) fn set_stage(&self, stage: &str, position: u64, length: u64) {
        if let Some(bar) = &self.bar {
            if bar.is_finished() {
                bar.reset();
            }
            Self::draw(bar, STEPS, stage, position, length);
        }
    }

    fn draw(bar: &ProgressBar, template: &str, stage: &str, position: u64, length: u64) {
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.with_key("eta", write_eta));
        }
        bar.set_length(length);
        bar.set_position(position);
        bar.set_message(stage.to_owned());
        bar.tick();
    }

    /// Moves the bar to `position`.
    pub(super) fn advance(&self, position: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(position);
        }
    }

    /// Removes the bar.
    pub(super) fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    /// Runs `print` with the bar hidden.
    pub(super) fn suspend_bar<R>(&self, print: impl FnOnce() -> R) -> R {
        match &self.bar {
            // A bar without a stage has no length; to suspend it would draw it.
            Some(bar) if bar.length().is_some() && !bar.is_finished() => bar.suspend(print),
            _ => print(),
        }
    }

    /// Prints a note, unless quiet.
    pub(super) fn note(&self, text: &str) {
        if !self.quiet {
            self.suspend_bar(|| print_note(text));
        }
    }

    /// Prints an error; returns the line.
    pub(super) fn error(&self, error: &anyhow::Error) -> String {
        self.suspend_bar(|| print_error(error))
    }
}

/// Writes the estimated time that is left; nothing is known at the start.
fn write_eta(state: &ProgressState, out: &mut dyn fmt::Write) {
    // Writing to a bar's line does not fail.
    let _ = match state.pos() {
        0 => out.write_str("unknown"),
        _ => write!(out, "{:#}", HumanDuration(state.eta())),
    };
}

#[cfg(test)]
mod tests {
    #[test]
    fn causes_are_printed_once() {
        let cause = anyhow::anyhow!("cannot open `a`: not found");
        assert_eq!(
            super::with_causes(&cause.context("a.wav")),
            "a.wav: cannot open `a`: not found"
        );
        let quoted = anyhow::anyhow!("not found").context("cannot open `a`: not found");
        assert_eq!(super::with_causes(&quoted), "cannot open `a`: not found");
    }

    #[test]
    fn words_are_wrapped() {
        let names = "base, tiny.en, qwen3:0.6b";
        assert_eq!(super::wrap("- ", names, 80), "- base, tiny.en, qwen3:0.6b");
        assert_eq!(super::wrap("- ", names, 16), "- base, tiny.en,\n  qwen3:0.6b");
        assert_eq!(super::wrap("- ", names, 3), "- base,\n  tiny.en,\n  qwen3:0.6b");
    }

    #[test]
    fn messages_stay_on_one_line() {
        assert_eq!(super::one_line("a\n  b: c\r\n\nd"), "a b: c d");
    }
}
