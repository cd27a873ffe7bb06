//! Output of live text: a line that is redrawn on a terminal, whole lines elsewhere, or JSON events.

use std::io::{self, IsTerminal};

use clap::ValueEnum;
use console::{Term, measure_text_width, style, truncate_str};
use stonechat::whisper::LiveEvent;

use super::clock::Summary;
use crate::json::rounded;

/// Punctuation that ends a sentence, and with it a line where lines are not redrawn.
const SENTENCE_ENDS: [char; 7] = ['.', '?', '!', '。', '？', '！', '।'];

/// Values of `--output-format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum TextFormat {
    Txt,
    Json,
}

/// Output and its state.
#[derive(Debug)]
pub(super) enum Screen {
    /// A terminal and its current line.
    Terminal(Term, Line),
    /// Text of the unfinished line.
    Lines(String),
    Json,
}

/// Current line of a terminal.
#[derive(Debug, Default)]
pub(super) struct Line {
    /// Committed text.
    committed: String,
    /// Partial hypothesis.
    partial: String,
}

/// JSON line of an event that was emitted at second `at` of the stream.
#[derive(serde::Serialize)]
struct Emitted<'a> {
    at: f64,
    #[serde(flatten)]
    event: &'a LiveEvent,
}

/// Last JSON line.
#[derive(serde::Serialize)]
struct Ended<'a> {
    event: &'static str,
    #[serde(flatten)]
    summary: &'a Summary,
}

impl Screen {
    /// Opens standard output.
    pub(super) fn new(format: TextFormat) -> Self {
        match format {
            TextFormat::Json => Self::Json,
            TextFormat::Txt if io::stdout().is_terminal() => {
                Self::Terminal(Term::stdout(), Line::default())
            }
            TextFormat::Txt => Self::Lines(String::new()),
        }
    }

    /// Prints an event at second `at` of the stream.
    pub(super) fn show(&mut self, event: &LiveEvent, at: f64) -> io::Result<()> {
        match self {
            Self::Terminal(terminal, line) => {
                let width = usize::from(terminal.size().1);
                for whole in line.apply(event, width) {
                    terminal.clear_line()?;
                    terminal.write_line(&whole)?;
                }
                terminal.clear_line()?;
                terminal.write_str(&line.text(width))
            }
            Self::Lines(text) => crate::print(&whole_lines(text, event)),
            Self::Json => print_json(&Emitted { at, event }),
        }
    }

    /// Prints the summary in the JSON format.
    pub(super) fn end(&self, summary: &Summary) -> io::Result<()> {
        match self {
            Self::Json => print_json(&Ended { event: "summary", summary }),
            Self::Terminal(..) | Self::Lines(_) => Ok(()),
        }
    }
}

fn print_json(value: &impl serde::Serialize) -> io::Result<()> {
    crate::print(&format!("{}\n", rounded(value)?))
}

impl Line {
    /// Applies an event; returns the lines that are full or ended.
    fn apply(&mut self, event: &LiveEvent, width: usize) -> Vec<String> {
        let mut whole = Vec::new();
        match event {
            LiveEvent::Partial { text } => self.partial.clone_from(text),
            LiveEvent::Committed { words } => {
                self.partial.clear();
                for live in words {
                    let word = live.word.word.as_str();
                    let needed = measure_text_width(&self.committed) + measure_text_width(word);
                    if needed > width && !self.committed.is_empty() {
                        whole.push(std::mem::take(&mut self.committed));
                    }
                    let at_start = self.committed.is_empty();
                    self.committed += if at_start { word.trim_start() } else { word };
                }
            }
            LiveEvent::End { .. } => {
                self.partial.clear();
                if !self.committed.is_empty() {
                    whole.push(std::mem::take(&mut self.committed));
                }
            }
            _ => {}
        }
        whole
    }

    /// Text of the line, with as much of the partial text as fits, dimmed.
    fn text(&self, width: usize) -> String {
        let at_start = self.committed.is_empty();
        let partial = if at_start { self.partial.trim_start() } else { &self.partial };
        let available = width.saturating_sub(measure_text_width(&self.committed) + 1);
        let partial = truncate_str(partial, available, "…");
        format!("{}{}", self.committed, style(partial).dim())
    }
}

/// Appends committed words to `text`; returns the lines that a sentence or an utterance ended.
fn whole_lines(text: &mut String, event: &LiveEvent) -> String {
    let mut lines = String::new();
    let mut end_line = |text: &mut String| {
        if !text.trim().is_empty() {
            lines += text.trim();
            lines.push('\n');
        }
        text.clear();
    };
    match event {
        LiveEvent::Committed { words } => {
            for live in words {
                text.push_str(&live.word.word);
                if live.word.word.ends_with(SENTENCE_ENDS) {
                    end_line(text);
                }
            }
        }
        LiveEvent::End { .. } => end_line(text),
        _ => {}
    }
    lines
}

#[cfg(test)]
mod tests {
    use stonechat::whisper::{LiveEvent, LiveWord, Word};

    use super::{Line, whole_lines};

    fn committed(text: &str) -> LiveEvent {
        let word =
            |word: &str| Word { word: format!(" {word}"), start: 0.0, end: 0.0, probability: 1.0 };
        let words = text.split_whitespace().map(|text| LiveWord { word: word(text), latency: 0.0 });
        LiveEvent::Committed { words: words.collect() }
    }

    fn partial(text: &str) -> LiveEvent {
        LiveEvent::Partial { text: text.to_owned() }
    }

    #[test]
    fn lines_end_with_sentences_and_utterances() {
        let mut text = String::new();
        let mut show = |event: &LiveEvent| whole_lines(&mut text, event);
        assert_eq!(show(&committed("One, two.")), "One, two.\n");
        assert_eq!(show(&partial(" three")), "");
        assert_eq!(show(&committed("Three four")), "");
        assert_eq!(show(&committed("five! Six")), "Three four five!\n");
        assert_eq!(show(&LiveEvent::End { time: 1.0 }), "Six\n");
        assert_eq!(show(&LiveEvent::End { time: 2.0 }), "");
    }

    #[test]
    fn a_line_of_a_terminal_is_redrawn_until_it_is_full() {
        let mut line = Line::default();
        let plain = |line: &Line| console::strip_ansi_codes(&line.text(12)).into_owned();
        assert!(line.apply(&partial(" some words"), 12).is_empty());
        assert_eq!(plain(&line), "some words");
        assert!(line.apply(&committed("same"), 12).is_empty());
        assert!(line.apply(&partial(" words as before"), 12).is_empty());
        assert_eq!(plain(&line), "same words…");
        assert_eq!(line.apply(&committed("words as"), 12), ["same words"]);
        assert_eq!(plain(&line), "as");
        assert_eq!(line.apply(&LiveEvent::End { time: 1.0 }, 12), ["as"]);
        assert_eq!(plain(&line), "");
    }
}
