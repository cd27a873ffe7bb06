//! Subtitle cues from segments and words (openai/whisper `utils.py`, `SubtitlesWriter`).

use super::{SubtitleLayout, milliseconds, one_line};
use crate::transcript::{Segment, Word};

/// Minimum pause in seconds that ends a subtitle of several segments.
const LONG_PAUSE: f64 = 3.0;

/// One subtitle; times in milliseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cue {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) text: String,
}

/// Markup of the subtitle format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Markup {
    Srt,
    Vtt,
}

impl Markup {
    /// Escapes tags and character references of WebVTT.
    fn escape(self, text: &str) -> String {
        match self {
            Self::Srt => text.to_owned(),
            Self::Vtt => text.replace('&', "&amp;").replace('<', "&lt;"),
        }
    }

    /// Text before the words of `speaker`.
    fn speaker(self, speaker: &str) -> String {
        let speaker = self.escape(&one_line(speaker));
        match self {
            Self::Srt => format!("[{speaker}] "),
            Self::Vtt => format!("<v {}>", speaker.replace('>', "&gt;")),
        }
    }
}

/// Builder of subtitles from consecutive segments.
#[derive(Debug)]
pub(super) struct Cues {
    layout: SubtitleLayout,
    markup: Markup,
    /// Speaker of the current subtitle.
    speaker: Option<String>,
    /// Words of the current subtitle; the first word of a further line begins with a line break.
    words: Vec<Word>,
    line_width: usize,
    n_lines: usize,
    /// Start of the last word, in seconds.
    last: Option<f64>,
}

impl Cues {
    pub(super) fn new(layout: SubtitleLayout, markup: Markup) -> Self {
        let words = Vec::new();
        Self { layout, markup, speaker: None, words, line_width: 0, n_lines: 1, last: None }
    }

    /// Adds a segment and returns the completed subtitles.
    pub(super) fn push(&mut self, segment: &Segment) -> Vec<Cue> {
        let words = segment.words.as_deref().unwrap_or_default();
        let mut done = Vec::new();
        if words.is_empty() || self.speaker != segment.speaker {
            self.complete(&mut done);
            self.speaker.clone_from(&segment.speaker);
        }
        if words.is_empty() {
            let text = self.with_speaker(&self.escape(segment.text.trim()));
            let (start, end) = (milliseconds(segment.start), milliseconds(segment.end));
            done.push(Cue { start, end, text });
            return done;
        }
        for (index, word) in words.iter().enumerate() {
            self.push_word(index, word, &mut done);
        }
        if !self.spans_segments() {
            self.complete(&mut done);
        }
        done
    }

    /// Returns the current subtitle.
    pub(super) fn finish(&mut self) -> Vec<Cue> {
        let mut done = Vec::new();
        self.complete(&mut done);
        done
    }

    fn spans_segments(&self) -> bool {
        self.layout.max_line_width.is_some() && self.layout.max_line_count.is_some()
    }

    /// Adds word `index` of its segment to the current line, a new line or a new subtitle.
    fn push_word(&mut self, index: usize, word: &Word, done: &mut Vec<Cue>) {
        let SubtitleLayout { max_line_width, max_line_count, max_words_per_line, .. } = self.layout;
        let spans = self.spans_segments();
        let paused = spans && word.start - self.last.unwrap_or(word.start) > LONG_PAUSE;
        let starts_cue =
            !spans && index.is_multiple_of(max_words_per_line.unwrap_or(usize::MAX).max(1));
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

    /// Completes the current subtitle, if it has words.
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

    /// Joins the words to one text, with word `underlined` underlined.
    fn text(&self, words: &[Word], underlined: Option<usize>) -> String {
        let mut text = String::new();
        for (i, word) in words.iter().enumerate() {
            let spoken = word.word.trim_start();
            text.push_str(&word.word[..word.word.len() - spoken.len()]);
            let escaped = self.escape(spoken);
            if underlined == Some(i) {
                text.push_str(&format!("<u>{escaped}</u>"));
            } else {
                text.push_str(&escaped);
            }
        }
        self.with_speaker(&text)
    }

    /// Prepends the speaker and replaces arrows, which only lines of times may have.
    fn with_speaker(&self, text: &str) -> String {
        let speaker = self.speaker.as_deref().map(|name| self.markup.speaker(name));
        speaker.unwrap_or_default() + &text.replace("-->", "->")
    }

    fn escape(&self, text: &str) -> String {
        self.markup.escape(&one_line(text))
    }
}
