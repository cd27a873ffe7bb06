//! Text while it comes: one line that is rewritten on a terminal, whole lines elsewhere, or events as
//! JSON.

use std::io::{self, IsTerminal};

use clap::ValueEnum;
use console::{Term, measure_text_width, style, truncate_str};
use stonechat::whisper::LiveEvent;

use super::clock::Summary;

/// Marks that end a sentence, and with it a line where lines are not rewritten.
const SENTENCE_ENDS: [char; 7] = ['.', '?', '!', '。', '？', '！', '।'];

/// Values of `--output-format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum TextFormat {
    Txt,
    Json,
}

/// What has been shown.
#[derive(Debug)]
pub(super) enum Screen {
    /// A terminal and the line that the cursor is in.
    Terminal(Term, Line),
    /// Text of a line that is not printed yet.
    Lines(String),
    Json,
}

/// A line of a terminal.
#[derive(Debug, Default)]
pub(super) struct Line {
    /// Text that stays.
    committed: String,
    /// Text that may change.
    partial: String,
}

/// An event as a line of JSON: with the second of the stream that it was told at.
#[derive(serde::Serialize)]
struct Told<'a> {
    at: f64,
    #[serde(flatten)]
    event: &'a LiveEvent,
}

/// The last line of JSON.
#[derive(serde::Serialize)]
struct Ended<'a> {
    event: &'static str,
    #[serde(flatten)]
    summary: &'a Summary,
}

impl Screen {
    /// Standard output.
    pub(super) fn new(format: TextFormat) -> Self {
        match format {
            TextFormat::Json => Self::Json,
            TextFormat::Txt if io::stdout().is_terminal() => {
                Self::Terminal(Term::stdout(), Line::default())
            }
            TextFormat::Txt => Self::Lines(String::new()),
        }
    }

    /// Shows an event at second `at` of the stream.
    pub(super) fn show(&mut self, event: &LiveEvent, at: f64) -> io::Result<()> {
        match self {
            Self::Terminal(terminal, line) => {
                let width = usize::from(terminal.size().1);
                for whole in line.take(event, width) {
                    terminal.clear_line()?;
                    terminal.write_line(&whole)?;
                }
                terminal.clear_line()?;
                terminal.write_str(&line.shown(width))
            }
            Self::Lines(text) => crate::print(&whole_lines(text, event)),
            Self::Json => print_json(&Told { at, event }),
        }
    }

    /// Shows what was measured, where events are.
    pub(super) fn end(&self, summary: &Summary) -> io::Result<()> {
        match self {
            Self::Json => print_json(&Ended { event: "summary", summary }),
            Self::Terminal(..) | Self::Lines(_) => Ok(()),
        }
    }
}

fn print_json(value: &impl serde::Serialize) -> io::Result<()> {
    crate::print(&(serde_json::to_string(value)? + "\n"))
}

impl Line {
    /// Takes an event and gives the lines that are full or ended.
    fn take(&mut self, event: &LiveEvent, width: usize) -> Vec<String> {
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
            LiveEvent::Language { .. } => {}
        }
        whole
    }

    /// The line as it is shown: what of the partial text fits, dimmed.
    fn shown(&self, width: usize) -> String {
        let at_start = self.committed.is_empty();
        let partial = if at_start { self.partial.trim_start() } else { &self.partial };
        let room = width.saturating_sub(measure_text_width(&self.committed) + 1);
        let partial = truncate_str(partial, room, "…");
        format!("{}{}", self.committed, style(partial).dim())
    }
}

/// Adds what is committed to `text` and gives the lines that ended: with a sentence or an utterance.
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
        LiveEvent::Partial { .. } | LiveEvent::Language { .. } => {}
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
    fn a_line_of_a_terminal_is_rewritten_until_it_is_full() {
        let mut line = Line::default();
        let plain = |line: &Line| console::strip_ansi_codes(&line.shown(12)).into_owned();
        assert!(line.take(&partial(" some words"), 12).is_empty());
        assert_eq!(plain(&line), "some words");
        assert!(line.take(&committed("same"), 12).is_empty());
        assert!(line.take(&partial(" words as before"), 12).is_empty());
        assert_eq!(plain(&line), "same words…");
        assert_eq!(line.take(&committed("words as"), 12), ["same words"]);
        assert_eq!(plain(&line), "as");
        assert_eq!(line.take(&LiveEvent::End { time: 1.0 }, 12), ["as"]);
        assert_eq!(plain(&line), "");
    }
}
