//! Arguments about speech and its words: what is left out, word times, lines of subtitles.

use stonechat::whisper::{Options, SubtitleLayout};

use crate::vad::VadArgs;

/// Arguments that say what is listened to and how words are shown.
#[derive(Debug, clap::Args)]
pub(super) struct SpeechArgs {
    #[command(flatten)]
    vad: VadArgs,
    /// Find the time of each word
    #[arg(long)]
    word_timestamps: bool,
    /// Characters that belong to the word after them
    #[arg(long, value_name = "TEXT", default_value = Options::PREPEND_PUNCTUATIONS)]
    prepend_punctuations: String,
    /// Characters that belong to the word before them
    #[arg(long, value_name = "TEXT", default_value = Options::APPEND_PUNCTUATIONS)]
    append_punctuations: String,
    /// Leave out text that looks made up between silences longer than this; finds word times
    #[arg(long, value_name = "SECONDS")]
    hallucination_silence_threshold: Option<f64>,
    /// Most characters in a line of subtitles; this and the next three find word times
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_line_width: Option<u32>,
    /// Most lines in a subtitle, which then goes on across segments if lines have a width
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_line_count: Option<u32>,
    /// Most words in a subtitle
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..),
        conflicts_with_all = ["max_line_width", "max_line_count"]
    )]
    max_words_per_line: Option<u32>,
    /// Underline each word while it is spoken (srt, vtt)
    #[arg(long)]
    highlight_words: bool,
}

impl SpeechArgs {
    /// The lines of subtitles.
    pub(super) fn layout(&self) -> SubtitleLayout {
        let size = |n: Option<u32>| n.map(|n| n as usize);
        SubtitleLayout {
            max_line_width: size(self.max_line_width),
            max_line_count: size(self.max_line_count),
            max_words_per_line: size(self.max_words_per_line),
            highlight_words: self.highlight_words,
        }
    }

    /// `options` with what these arguments say.
    pub(super) fn apply(&self, options: Options) -> Options {
        let word_timestamps = self.word_timestamps
            || self.hallucination_silence_threshold.is_some()
            || self.layout().needs_words();
        Options {
            vad: self.vad.mode(),
            vad_options: self.vad.options(options.vad_options),
            word_timestamps,
            prepend_punctuations: self.prepend_punctuations.clone(),
            append_punctuations: self.append_punctuations.clone(),
            hallucination_silence_threshold: self.hallucination_silence_threshold,
            ..options
        }
    }
}
