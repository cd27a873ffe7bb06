//! Transcript files: the formats of openai/whisper (`utils.py`, `Write*` classes) and whisper.cpp.

mod cues;
mod full;

use std::io::{self, Write};

use crate::transcript::{Segment, Transcript, Word};
use cues::{Cue, Cues, Markup};

/// Formats of a transcript file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OutputFormat {
    /// One line of text per segment.
    Txt,
    /// SubRip subtitles.
    Srt,
    /// WebVTT subtitles.
    Vtt,
    /// Start and end in milliseconds and text, tab-separated.
    Tsv,
    /// JSON with openai/whisper's fields; times in seconds.
    Json,
    /// JSON with whisper.cpp's fields; times as text and in milliseconds.
    JsonFull,
    /// LRC lyrics: start and text of each segment.
    Lrc,
    /// Start and end in milliseconds and quoted text, comma-separated.
    Csv,
}

/// Line layout of subtitles; options of openai/whisper's command line. All but the default need word
/// timestamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SubtitleLayout {
    /// Maximum characters of a line; `None` is no limit. openai `--max_line_width`.
    pub max_line_width: Option<usize>,
    /// Maximum lines of a subtitle; with a line width, subtitles span segments. openai
    /// `--max_line_count`.
    pub max_line_count: Option<usize>,
    /// Maximum words of a subtitle; ignored with both of the above. openai `--max_words_per_line`.
    pub max_words_per_line: Option<usize>,
    /// Show a subtitle once per word, with that word underlined. openai `--highlight_words`.
    pub highlight_words: bool,
}

impl SubtitleLayout {
    /// Whether the layout needs word timestamps.
    #[must_use]
    pub fn needs_words(&self) -> bool {
        *self != Self::default()
    }
}

impl OutputFormat {
    /// All formats.
    pub const ALL: &[Self] = &[
        Self::Txt,
        Self::Srt,
        Self::Vtt,
        Self::Tsv,
        Self::Json,
        Self::JsonFull,
        Self::Lrc,
        Self::Csv,
    ];

    /// Name, for example `srt`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Txt => "txt",
            Self::Srt => "srt",
            Self::Vtt => "vtt",
            Self::Tsv => "tsv",
            Self::Json => "json",
            Self::JsonFull => "json-full",
            Self::Lrc => "lrc",
            Self::Csv => "csv",
        }
    }

    /// File extension, unique per format.
    #[must_use]
    pub fn extension(self) -> &'static str {
        match self {
            Self::JsonFull => "full.json",
            other => other.name(),
        }
    }

    /// Writes a whole transcript.
    ///
    /// # Errors
    /// If `out` fails.
    pub fn write(
        self,
        out: &mut dyn Write,
        transcript: &Transcript,
        layout: SubtitleLayout,
    ) -> io::Result<()> {
        let mut writer = TranscriptWriter::new(self, layout);
        writer.begin(out)?;
        transcript.segments.iter().try_for_each(|segment| writer.segment(out, segment))?;
        writer.end(out, transcript)
    }
}

impl std::str::FromStr for OutputFormat {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.iter().copied().find(|f| f.name().eq_ignore_ascii_case(name)).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|format| format.name()).collect();
            format!("expected {}, got `{name}`", names.join(", "))
        })
    }
}

/// Incremental writer: call [`begin`](Self::begin), [`segment`](Self::segment) for each segment, then
/// [`end`](Self::end).
#[derive(Debug)]
pub struct TranscriptWriter {
    format: OutputFormat,
    cues: Cues,
    n_cues: usize,
    /// Whether lines of text begin with their times.
    has_times: bool,
    /// Whether lyrics have the time of each word.
    has_word_times: bool,
}

impl TranscriptWriter {
    /// Creates a writer of one transcript.
    #[must_use]
    pub fn new(format: OutputFormat, layout: SubtitleLayout) -> Self {
        let markup = if format == OutputFormat::Vtt { Markup::Vtt } else { Markup::Srt };
        let has_word_times = layout.highlight_words;
        // Plain text has no markup.
        let highlight_words = layout.highlight_words && format != OutputFormat::Txt;
        let cues = Cues::new(SubtitleLayout { highlight_words, ..layout }, markup);
        Self { format, cues, n_cues: 0, has_times: false, has_word_times }
    }

    /// The same with whisper.cpp's `[00:00:00.000 --> 00:00:02.500]` before each line of [`OutputFormat::Txt`], whose
    /// lines follow the layout of subtitles then. Other formats do not change.
    #[must_use]
    pub fn with_times(self) -> Self {
        Self { has_times: self.format == OutputFormat::Txt, ..self }
    }

    /// Writes the header.
    ///
    /// # Errors
    /// If `out` fails.
    pub fn begin(&mut self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(match self.format {
            OutputFormat::Vtt => b"WEBVTT\n\n",
            OutputFormat::Tsv => b"start\tend\ttext\n",
            OutputFormat::Csv => b"start,end,text\n",
            _ => b"",
        })
    }

    /// Writes one segment. JSON is written at the end; subtitles that span segments are written once
    /// they are complete.
    ///
    /// # Errors
    /// If `out` fails.
    pub fn segment(&mut self, out: &mut dyn Write, segment: &Segment) -> io::Result<()> {
        let (start, end) = (milliseconds(segment.start), milliseconds(segment.end));
        let text = one_line(segment.text.trim());
        let text = match (&segment.speaker, self.format) {
            // Brackets enclose times in LRC.
            (Some(speaker), OutputFormat::Lrc) => format!("{}: {text}", one_line(speaker)),
            (Some(speaker), _) => format!("[{}] {text}", one_line(speaker)),
            (None, _) => text,
        };
        match self.format {
            OutputFormat::Txt if self.has_times => {
                let cues = self.cues.push(segment);
                self.write_cues(out, &cues)
            }
            OutputFormat::Txt => writeln!(out, "{text}"),
            OutputFormat::Tsv => writeln!(out, "{start}\t{end}\t{}", text.replace('\t', " ")),
            OutputFormat::Csv => {
                writeln!(out, "{start},{end},\"{}\"", text.replace('"', "\"\""))
            }
            OutputFormat::Lrc => {
                let words = segment.words.as_deref().filter(|_| self.has_word_times);
                let text = words.filter(|words| !words.is_empty()).map_or(text, |words| {
                    let speaker = segment.speaker.as_deref();
                    let speaker = speaker.map(|name| format!("{}: ", one_line(name)));
                    speaker.unwrap_or_default() + &timed_words(words)
                });
                writeln!(out, "[{}]{text}", lyrics_clock(start))
            }
            OutputFormat::Srt | OutputFormat::Vtt => {
                let cues = self.cues.push(segment);
                self.write_cues(out, &cues)
            }
            OutputFormat::Json | OutputFormat::JsonFull => Ok(()),
        }
    }

    /// Writes the rest: JSON, or the last subtitle.
    ///
    /// # Errors
    /// If `out` fails.
    pub fn end(&mut self, out: &mut dyn Write, transcript: &Transcript) -> io::Result<()> {
        match self.format {
            OutputFormat::Json => {
                serde_json::to_writer(&mut *out, transcript)?;
                writeln!(out)
            }
            OutputFormat::JsonFull => {
                serde_json::to_writer(&mut *out, &full::JsonFull::from(transcript))?;
                writeln!(out)
            }
            // Without times, lines of text are never cues.
            OutputFormat::Srt | OutputFormat::Vtt | OutputFormat::Txt => {
                let cues = self.cues.finish();
                self.write_cues(out, &cues)
            }
            OutputFormat::Tsv | OutputFormat::Csv | OutputFormat::Lrc => Ok(()),
        }
    }

    fn write_cues(&mut self, out: &mut dyn Write, cues: &[Cue]) -> io::Result<()> {
        for Cue { start, end, text } in cues {
            if self.format == OutputFormat::Srt {
                self.n_cues += 1;
                let (start, end) = (clock(*start, true, ','), clock(*end, true, ','));
                writeln!(out, "{}\n{start} --> {end}\n{text}\n", self.n_cues)?;
            } else if self.format == OutputFormat::Txt {
                let (start, end) = (clock(*start, true, '.'), clock(*end, true, '.'));
                writeln!(out, "[{start} --> {end}]   {}", one_line(text))?;
            } else {
                let (start, end) = (clock(*start, false, '.'), clock(*end, false, '.'));
                writeln!(out, "{start} --> {end}\n{text}\n")?;
            }
        }
        Ok(())
    }
}

/// Replaces line breaks by spaces: an empty line would end a subtitle.
fn one_line(text: &str) -> String {
    text.replace(['\r', '\n'], " ")
}

/// Words with their starts, as enhanced LRC has them: `<00:01.20>quick <00:01.50>brown`.
fn timed_words(words: &[Word]) -> String {
    let timed = |word: &Word| {
        let text = one_line(&word.word);
        let spoken = text.trim_start();
        let blanks = &text[..text.len() - spoken.len()];
        format!("{blanks}<{}>{spoken}", lyrics_clock(milliseconds(word.start)))
    };
    words.iter().map(timed).collect::<String>().trim().to_owned()
}

/// Formats milliseconds as `MM:SS.hh`.
fn lyrics_clock(ms: u64) -> String {
    let hundredths = (ms + 5) / 10;
    let (minutes, rest) = (hundredths / 6000, hundredths % 6000);
    format!("{minutes:02}:{:02}.{:02}", rest / 100, rest % 100)
}

fn milliseconds(seconds: f64) -> u64 {
    (seconds * 1000.0).round() as u64
}

/// Formats milliseconds as `HH:MM:SS.mmm`, without hours if they are zero and `hours` is false.
fn clock(ms: u64, hours: bool, point: char) -> String {
    let (h, m, s, ms) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60, ms % 1000);
    if hours || h > 0 {
        format!("{h:02}:{m:02}:{s:02}{point}{ms:03}")
    } else {
        format!("{m:02}:{s:02}{point}{ms:03}")
    }
}

#[cfg(test)]
mod tests;
