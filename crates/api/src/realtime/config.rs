//! Configuration of a session.

mod update;

use stonechat::VadMode;
use stonechat::audio::PcmFormat;
use stonechat::whisper::{LiveOptions, Options};

use crate::ApiResult;
use crate::speech::language;
pub(super) use update::SessionUpdate;

/// Sample rates of `audio/pcm`.
const RATES: [u32; 2] = [24_000, 16_000];
/// Entry of `include` for log-probabilities.
pub(super) const LOGPROBS: &str = "item.input_audio_transcription.logprobs";

/// Format of the client's audio.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputFormat {
    /// 16-bit signed integers, little-endian, mono.
    Pcm {
        /// 24,000 or 16,000 Hz.
        rate: u32,
    },
    /// G.711 µ-law, 8 kHz.
    MuLaw,
    /// G.711 A-law, 8 kHz.
    ALaw,
}

impl InputFormat {
    /// Sample format, and sample rate in Hz.
    #[must_use]
    pub fn pcm(self) -> (PcmFormat, u32) {
        match self {
            Self::Pcm { rate } => (PcmFormat::S16, rate),
            Self::MuLaw => (PcmFormat::MuLaw, 8000),
            Self::ALaw => (PcmFormat::ALaw, 8000),
        }
    }
}

/// Voice activity detection that commits utterances.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct ServerVad {
    #[serde(rename = "type")]
    kind: &'static str,
    /// Probability at which speech begins.
    pub threshold: f32,
    /// Audio before the speech that belongs to it.
    pub prefix_padding_ms: u32,
    /// Silence that ends the speech.
    pub silence_duration_ms: u32,
}

impl Default for ServerVad {
    fn default() -> Self {
        Self {
            kind: "server_vad",
            threshold: 0.5,
            prefix_padding_ms: 300,
            silence_duration_ms: 500,
        }
    }
}

/// Configuration of a session.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Format of the audio.
    pub format: InputFormat,
    /// Name of the model; `None`: the only one.
    pub model: Option<String>,
    /// Spoken language; detected without one.
    pub language: Option<String>,
    /// Languages that detection chooses from.
    pub languages: Vec<String>,
    /// Text before the audio, for its style and spelling.
    pub prompt: Option<String>,
    /// Words to expect.
    pub keywords: Vec<String>,
    /// Detection of utterances; `None`: the client commits them.
    pub turn_detection: Option<ServerVad>,
    /// Whether transcripts have log-probabilities.
    pub has_logprobs: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            format: InputFormat::Pcm { rate: RATES[0] },
            model: None,
            language: None,
            languages: Vec::new(),
            prompt: None,
            keywords: Vec::new(),
            turn_detection: Some(ServerVad::default()),
            has_logprobs: false,
        }
    }
}

impl Config {
    /// Options of the live stream.
    ///
    /// # Errors
    /// 400 with the field, what was expected and what was found.
    pub fn live_options(&self) -> ApiResult<LiveOptions> {
        let defaults = LiveOptions::default();
        let mut decoding = defaults.decoding;
        let languages = self.languages.iter().map(|name| language(name, "languages"));
        decoding.languages = languages.collect::<Result<_, _>>()?;
        let name = self.language.as_ref().filter(|name| *name != "auto");
        decoding.language = name.map(|name| language(name, "language")).transpose()?;
        if let ([language], None) = (&decoding.languages[..], decoding.language) {
            decoding.language = Some(*language);
        }
        decoding.initial_prompt.clone_from(&self.prompt);
        decoding.hotwords = Some(self.keywords.join(", ")).filter(|words| !words.is_empty());
        if let Some(vad) = self.turn_detection {
            let options = &mut decoding.vad_options;
            options.threshold = vad.threshold;
            options.speech_pad_ms = vad.prefix_padding_ms;
            options.min_silence_ms = vad.silence_duration_ms;
            decoding.vad = VadMode::On;
        }
        decoding.validate()?;
        Ok(LiveOptions { decoding, ..defaults })
    }

    /// Bytes of its texts in memory.
    #[must_use]
    pub fn text_bytes(&self) -> usize {
        let texts = [&self.model, &self.language, &self.prompt].into_iter().flatten();
        let texts = texts.chain(&self.languages).chain(&self.keywords);
        texts.map(|text| size_of::<String>() + text.capacity()).sum()
    }

    /// Options of an utterance that the client commits.
    ///
    /// # Errors
    /// As [`live_options`](Self::live_options).
    pub fn options(&self) -> ApiResult<Options> {
        self.live_options().map(|options| options.decoding)
    }
}

#[cfg(test)]
mod tests;
