//! Flags of the voice activity detector (Silero VAD).

use std::str::FromStr;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use stonechat::audio::VadOptions;
use stonechat::whisper::VadMode;

use super::headings::VOICE_ACTIVITY;

/// Flags of the voice activity detector.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = VOICE_ACTIVITY)]
pub(super) struct VadArgs {
    /// Transcribe only speech: on, off or auto
    ///
    /// auto enables it for live streams, for split channels and for recordings longer than 30 s; of a
    /// shorter one it only tells whether anyone speaks.
    #[arg(long, value_name = "WHEN", value_parser = mode_parser(), hide_possible_values = true, default_value = "auto")]
    pub(super) vad: VadMode,
    /// Speech probability at which a segment starts
    #[arg(long, value_name = "P", default_value_t = 0.5)]
    vad_threshold: f32,
    /// Speech probability below which it ends [default: 0.15 less]
    #[arg(long, value_name = "P")]
    vad_neg_threshold: Option<f32>,
    /// Minimum speech duration, shorter is dropped (ms)
    ///
    /// Live streams ignore it.
    #[arg(long, value_name = "MS", default_value_t = 0)]
    vad_min_speech_ms: u32,
    /// Maximum speech duration, longer is split (s)
    ///
    /// Live streams ignore it. none is no limit.
    #[arg(long, value_name = "SECONDS", default_value = "none")]
    vad_max_speech_s: Threshold,
    /// Min silence to split segments (ms) [default: 2000, live: 1000]
    #[arg(long, value_name = "MS")]
    vad_min_silence_ms: Option<u32>,
    /// Padding before and after speech segments (ms)
    #[arg(long, value_name = "MS", default_value_t = 400)]
    vad_speech_pad_ms: u32,
}

/// A number, or `none`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Threshold(pub(super) Option<f64>);

impl FromStr for Threshold {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.eq_ignore_ascii_case("none") {
            return Ok(Self(None));
        }
        match text.parse() {
            Ok(value) if f64::is_finite(value) => Ok(Self(Some(value))),
            _ => Err("expected a number or none".to_owned()),
        }
    }
}

/// Parser of `--vad`.
fn mode_parser() -> impl TypedValueParser<Value = VadMode> {
    PossibleValuesParser::new(["on", "off", "auto"]).map(|name| match name.as_str() {
        "on" => VadMode::On,
        "off" => VadMode::Off,
        _ => VadMode::Auto,
    })
}

impl VadArgs {
    /// Detector options, with `defaults` for absent flags.
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

#[cfg(test)]
mod tests {
    use super::Threshold;

    #[test]
    fn thresholds_can_be_none() {
        assert_eq!("none".parse(), Ok(Threshold(None)));
        assert_eq!("-1.5".parse(), Ok(Threshold(Some(-1.5))));
        assert!("high".parse::<Threshold>().is_err());
        assert!("nan".parse::<Threshold>().is_err());
    }
}
