//! Flags about voice activity, of the verbs that hear speech.

use clap::ValueEnum;
use stonechat::audio::VadOptions;
use stonechat::whisper::VadMode;

use super::transcribe::Threshold;

/// What is listened to.
#[derive(Debug, clap::Args)]
pub(super) struct VadArgs {
    /// Leave out what is not speech; auto does for streams, for split channels and for recordings longer than 30 s
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = VadName::Auto)]
    vad: VadName,
    /// Probability that speech begins at
    #[arg(long, value_name = "P", default_value_t = 0.5)]
    vad_threshold: f32,
    /// Probability that it ends below [default: 0.15 less]
    #[arg(long, value_name = "P")]
    vad_neg_threshold: Option<f32>,
    /// Shorter speech is left out of recordings
    #[arg(long, value_name = "MS", default_value_t = 0)]
    vad_min_speech_ms: u32,
    /// Longer speech of recordings is split; none for no limit
    #[arg(long, value_name = "SECONDS", default_value = "none")]
    vad_max_speech_s: Threshold,
    /// Shorter silence is kept [default: 2000, and 1000 in streams]
    #[arg(long, value_name = "MS")]
    vad_min_silence_ms: Option<u32>,
    /// What is kept before and after speech
    #[arg(long, value_name = "MS", default_value_t = 400)]
    vad_speech_pad_ms: u32,
}

/// Values of `--vad`.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum VadName {
    On,
    Off,
    Auto,
}

impl VadArgs {
    /// When what is not speech is left out.
    pub(super) fn mode(&self) -> VadMode {
        match self.vad {
            VadName::On => VadMode::On,
            VadName::Off => VadMode::Off,
            VadName::Auto => VadMode::Auto,
        }
    }

    /// What speech is, where `defaults` holds what was not said.
    pub(super) fn options(&self, defaults: VadOptions) -> VadOptions {
        VadOptions {
            threshold: self.vad_threshold,
            neg_threshold: self.vad_neg_threshold,
            min_speech_ms: self.vad_min_speech_ms,
            max_speech_s: self.vad_max_speech_s.0.map(|seconds| seconds as f32),
            min_silence_ms: self.vad_min_silence_ms.unwrap_or(defaults.min_silence_ms),
            speech_pad_ms: self.vad_speech_pad_ms,
        }
    }
}
