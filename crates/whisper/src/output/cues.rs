//! Segments and words to subtitles (openai/whisper `utils.py`, `SubtitlesWriter`).

use super::{SubtitleLayout, milliseconds, one_line};
use crate::{Segment, Word};

/// A longer pause ends a subtitle that goes on across segments, in seconds.
const LONG_PAUSE: f64 = 3.0;

/// What is shown for a while; times in milliseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cue {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) text: String,
}

/// What text means in a subtitle, and how a speaker is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Markup {
    Srt,
    Vtt,
}

impl Markup {
    /// WebVTT's cue text has tags and character references.
    fn escape(self, text: &str) -> String {
        match self {
            Self::Srt => text.to_owned(),
            Self::Vtt => text.replace('&', "&amp;").replace('<', "&lt;"),
        }
    }

    /// What comes before the words of `speaker`.
    fn speaker(self, speaker: &str) -> String {
        let speaker = self.escape(&one_line(speaker));
        match self {
            Self::Srt => format!("[{speaker}] "),
            Self::Vtt => format!("<v {}>", speaker.replace('>', "&gt;")),
        }
    }
}

/// Words on their way into subtitles.
#[derive(Debug)]
pub(super) struct Cues {
    layout: SubtitleLayout,
    markup: Markup,
    /// Who says the words.
    speaker: Option<String>,
    /// The subtitle that is being filled; a word that begins a line begins with its break.
    words: Vec<Word>,
    line_width: usize,
    n_lines: usize,
    /// Start of the last word.
    last: Option<f64>,
}

impl Cues {
    pub(super) fn new(layout: SubtitleLayout, markup: Markup) -> Self {
        let words = Vec::new();
        Self { layout, markup, speaker: None, words, line_width: 0, n_lines: 1, last: None }
    }

    /// Takes a segment; gives the subtitles that it completes.
    pub(super) fn push(&mut self, segment: &Segment) -> Vec<Cue> {
        let words = segment.words.as_deref().unwrap_or_default();
        let mut done = Vec::new();
        if words.is_empty() || self.speaker != segment.speaker {
            self.complete(&mut done);
            self.speaker.clone_from(&segment.speaker);
        }
        if words.is_empty() {
            let text = self.attributed(&self.shown(segment.text.trim()));
            let (start, end) = (milliseconds(segment.start), milliseconds(segment.end));
            done.push(Cue { start, end, text });
            return done;
        }
        for (index, word) in words.iter().enumerate() {
            self.push_word(index, word, &mut done);
        }
        if !self.crosses_segments() {
            self.complete(&mut done);
        }
        done
    }

    /// The subtitle that was not full.
    pub(super) fn finish(&mut self) -> Vec<Cue> {
        let mut done = Vec::new();
        self.complete(&mut done);
        done
    }

    fn crosses_segments(&self) -> bool {
        self.layout.max_line_width.is_some() && self.layout.max_line_count.is_some()
    }

    /// Adds the word of this index in its segment to the line, or begins a line or subtitle.
    fn push_word(&mut self, index: usize, word: &Word, done: &mut Vec<Cue>) {
        let SubtitleLayout { max_line_width, max_line_count, max_words_per_line, .. } = self.layout;
        let crosses = self.crosses_segments();
        let paused = crosses && word.start - self.last.unwrap_or(word.start) > LONG_PAUSE;
        let starts_cue =
            !crosses && index.is_multiple_of(max_words_per_line.unwrap_or(usize::MAX).max(1));
        let mut word = Word { word: one_line(&word.word), ..word.clone() };
        let width = self.line_width + word.word.chars().count();
        let has_room = max_line_width.is_none_or(|limit| width <= limit);
        if self.line_width > 0 && has_room && !paused && !starts_cue {
            self.line_width = width;
        } else {
            word.word = word.word.trim().to_owned();
            let width = word.word.chars().count();
            let is_full = max_line_count.is_some_and(|limit| paused || self.n_lines >= limit);
            if is_full || starts_cue {
                self.complete(done);
            }
            if self.line_width > 0 {
                self.n_lines += 1;
                word.word.insert(0, '\n');
            }
            self.line_width = width;
        }
        self.last = Some(word.start);
        self.words.push(word);
    }

    /// Ends the subtitle that is being filled, if there is one.
    fn complete(&mut self, done: &mut Vec<Cue>) {
        let words = std::mem::take(&mut self.words);
        (self.line_width, self.n_lines) = (0, 1);
        let (Some(first), Some(last)) = (words.first(), words.last()) else { return };
        let (start, end) = (milliseconds(first.start), milliseconds(last.end));
        if !self.layout.highlight_words {
            done.push(Cue { start, end, text: self.text(&words, None) });
            return;
        }
        let mut from = start;
        for (i, word) in words.iter().enumerate() {
            let (start, end) = (milliseconds(word.start), milliseconds(word.end));
            if from != start {
                done.push(Cue { start: from, end: start, text: self.text(&words, None) });
            }
            done.push(Cue { start, end, text: self.text(&words, Some(i)) });
            from = end;
        }
    }

    /// The words as one text, one of them underlined.
    fn text(&self, words: &[Word], underlined: Option<usize>) -> String {
        let mut text = String::new();
        for (i, word) in words.iter().enumerate() {
            let spoken = word.word.trim_start();
            text.push_str(&word.word[..word.word.len() - spoken.len()]);
            let shown = self.shown(spoken);
            if underlined == Some(i) {
                text.push_str(&format!("<u>{shown}</u>"));
            } else {
                text.push_str(&shown);
            }
        }
        self.attributed(&text)
    }

    /// The text of a subtitle after who says it; an arrow in it would be a line of times.
    fn attributed(&self, text: &str) -> String {
        let speaker = self.speaker.as_deref().map(|name| self.markup.speaker(name));
        speaker.unwrap_or_default() + &text.replace("-->", "->")
    }

    fn shown(&self, text: &str) -> String {
        self.markup.escape(&one_line(text))
    }
}
