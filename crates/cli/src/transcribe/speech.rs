//! Flags about voice activity, word timestamps and subtitle lines.

use stonechat::whisper::{Options, SubtitleLayout};

use crate::headings::SUBTITLES;
use crate::vad::VadArgs;

/// Flags about voice activity, word timestamps and subtitle lines.
#[derive(Debug, clap::Args)]
pub(super) struct SpeechArgs {
    #[command(flatten)]
    vad: VadArgs,
    /// Extract word-level timestamps
    #[arg(long, help_heading = SUBTITLES)]
    pub(super) word_timestamps: bool,
    /// Merge these punctuation symbols with the next word
    #[arg(long, value_name = "TEXT", default_value = Options::PREPEND_PUNCTUATIONS, help_heading = SUBTITLES)]
    prepend_punctuations: String,
    /// Merge these punctuation symbols with the previous word
    #[arg(long, value_name = "TEXT", default_value = Options::APPEND_PUNCTUATIONS, help_heading = SUBTITLES)]
    append_punctuations: String,
    /// Skip silent periods longer than this where a hallucination is likely (seconds)
    ///
    /// Implies --word-timestamps.
    #[arg(long, value_name = "SECONDS", help_heading = SUBTITLES)]
    hallucination_silence_threshold: Option<f64>,
    /// Maximum number of characters in a subtitle line
    ///
    /// Implies --word-timestamps.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = SUBTITLES)]
    max_line_width: Option<u32>,
    /// Maximum number of lines in a subtitle
    ///
    /// Implies --word-timestamps. With --max-line-width, a subtitle may span segments.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = SUBTITLES)]
    max_line_count: Option<u32>,
    /// Maximum number of words in a subtitle
    ///
    /// Implies --word-timestamps.
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..),
        conflicts_with_all = ["max_line_width", "max_line_count"],
        help_heading = SUBTITLES
    )]
    max_words_per_line: Option<u32>,
    /// Underline each word as it is spoken in srt and vtt
    ///
    /// In lrc, each word has its time (enhanced LRC). Implies --word-timestamps.
    #[arg(long, help_heading = SUBTITLES)]
    pub(super) highlight_words: bool,
}

impl SpeechArgs {
    /// Layout of subtitle lines.
    pub(super) fn layout(&self) -> SubtitleLayout {
        let size = |n: Option<u32>| n.map(|n| n as usize);
        SubtitleLayout {
            max_line_width: size(self.max_line_width),
            max_line_count: size(self.max_line_count),
            max_words_per_line: size(self.max_words_per_line),
            highlight_words: self.highlight_words,
        }
    }

    /// Applies these flags to `options`.
    pub(super) fn apply(&self, options: Options) -> Options {
        let word_timestamps = self.word_timestamps
            || self.hallucination_silence_threshold.is_some()
            || self.layout().needs_words();
        Options {
            vad: self.vad.vad,
            vad_options: self.vad.options(options.vad_options),
            word_timestamps,
            prepend_punctuations: self.prepend_punctuations.clone(),
            append_punctuations: self.append_punctuations.clone(),
            hallucination_silence_threshold: self.hallucination_silence_threshold,
            ..options
        }
    }
}
