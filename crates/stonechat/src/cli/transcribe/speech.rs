//! Arguments about speech and its words: what is left out, word times, lines of subtitles.

use clap::ValueEnum;
use stonechat::audio::VadOptions;
use stonechat::whisper::{Options, SubtitleLayout, VadMode};

use super::plan::Threshold;

/// Arguments that say what is listened to and how words are shown.
#[derive(Debug, clap::Args)]
pub(super) struct SpeechArgs {
    /// Leave out what is not speech; auto does for recordings longer than 30 s and for split channels
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = VadName::Auto)]
    vad: VadName,
    /// Probability that speech begins at
    #[arg(long, value_name = "P", default_value_t = 0.5)]
    vad_threshold: f32,
    /// Probability that it ends below [default: 0.15 less]
    #[arg(long, value_name = "P")]
    vad_neg_threshold: Option<f32>,
    /// Shorter speech is left out
    #[arg(long, value_name = "MS", default_value_t = 0)]
    vad_min_speech_ms: u32,
    /// Longer speech is split; none for no limit
    #[arg(long, value_name = "SECONDS", default_value = "none")]
    vad_max_speech_s: Threshold,
    /// Shorter silence is kept
    #[arg(long, value_name = "MS", default_value_t = 2000)]
    vad_min_silence_ms: u32,
    /// What is kept before and after speech
    #[arg(long, value_name = "MS", default_value_t = 400)]
    vad_speech_pad_ms: u32,
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

/// Values of `--vad`.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum VadName {
    On,
    Off,
    Auto,
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
            vad: match self.vad {
                VadName::On => VadMode::On,
                VadName::Off => VadMode::Off,
                VadName::Auto => VadMode::Auto,
            },
            vad_options: VadOptions {
                threshold: self.vad_threshold,
                neg_threshold: self.vad_neg_threshold,
                min_speech_ms: self.vad_min_speech_ms,
                max_speech_s: self.vad_max_speech_s.0.map(|seconds| seconds as f32),
                min_silence_ms: self.vad_min_silence_ms,
                speech_pad_ms: self.vad_speech_pad_ms,
            },
            word_timestamps,
            prepend_punctuations: self.prepend_punctuations.clone(),
            append_punctuations: self.append_punctuations.clone(),
            hallucination_silence_threshold: self.hallucination_silence_threshold,
            ..options
        }
    }
}
