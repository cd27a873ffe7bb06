//! Updates of the configuration that clients send.

use serde::{Deserialize, Deserializer};

use super::{Config, InputFormat, LOGPROBS, RATES, ServerVad};
use crate::{ApiError, ApiResult};

/// Maximum bytes of a prompt, and of all keywords.
const MAX_TEXT_BYTES: usize = 16 << 10;
/// Maximum entries of a list.
const MAX_ENTRIES: usize = 1000;
/// Maximum padding of speech, which is kept during silence.
const MAX_PADDING_MS: u32 = 5000;
/// Maximum silence that ends an utterance.
const MAX_SILENCE_MS: u32 = 60_000;

impl Config {
    /// The configuration after an update, which leaves what it does not name.
    pub(in crate::realtime) fn updated(&self, update: SessionUpdate) -> ApiResult<Self> {
        let mut config = self.clone();
        let SessionUpdate { kind, audio, include, .. } = update;
        if let Some(kind) = kind.filter(|kind| kind != "transcription") {
            let got = format!("`{kind}`: no model here answers with speech");
            return Err(ApiError::field("session.type", "`transcription`", got));
        }
        let InputUpdate { format, transcription, turn_detection } =
            audio.unwrap_or_default().input.unwrap_or_default();
        let places = [
            ("session.audio.input", format, transcription, turn_detection),
            (
                "session",
                update.input_audio_format.map(FormatUpdate::Name),
                update.input_audio_transcription,
                update.turn_detection,
            ),
        ];
        for (place, format, transcription, turn_detection) in places {
            if let Some(format) = format {
                config.format = format.format(place)?;
            }
            match transcription {
                None => {}
                Some(None) => {
                    let name = format!("{place}.transcription");
                    let expected = "an object: the session transcribes";
                    return Err(ApiError::field(&name, expected, "null"));
                }
                Some(Some(update)) => update.apply(&mut config)?,
            }
            if let Some(turn_detection) = turn_detection {
                let name = format!("{place}.turn_detection");
                let current = config.turn_detection;
                config.turn_detection =
                    turn_detection.map(|update| update.vad(current, &name)).transpose()?;
            }
        }
        if let Some(include) = include {
            let include = include.unwrap_or_default();
            if let Some(other) = include.iter().find(|entry| *entry != LOGPROBS) {
                return Err(ApiError::field("session.include", LOGPROBS, format!("`{other}`")));
            }
            config.has_logprobs = !include.is_empty();
        }
        config.live_options()?;
        Ok(config)
    }
}

/// Fields of `session`. Others have no effect, such as `modalities` and `instructions`, which clients send for speech output.
#[derive(Debug, Default, Deserialize)]
pub(in crate::realtime) struct SessionUpdate {
    #[serde(rename = "type")]
    kind: Option<String>,
    audio: Option<AudioUpdate>,
    #[serde(default, deserialize_with = "present")]
    include: Option<Option<Vec<String>>>,
    // Names of the beta interface.
    input_audio_format: Option<String>,
    #[serde(default, deserialize_with = "present")]
    input_audio_transcription: Option<Option<TranscriptionUpdate>>,
    #[serde(default, deserialize_with = "present")]
    turn_detection: Option<Option<TurnUpdate>>,
}

#[derive(Debug, Default, Deserialize)]
struct AudioUpdate {
    input: Option<InputUpdate>,
}

#[derive(Debug, Default, Deserialize)]
struct InputUpdate {
    format: Option<FormatUpdate>,
    #[serde(default, deserialize_with = "present")]
    transcription: Option<Option<TranscriptionUpdate>>,
    #[serde(default, deserialize_with = "present")]
    turn_detection: Option<Option<TurnUpdate>>,
}

/// A format: an object, or the name of the beta interface.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum FormatUpdate {
    Object {
        #[serde(rename = "type")]
        kind: String,
        rate: Option<u32>,
    },
    Name(String),
}

impl FormatUpdate {
    fn format(self, place: &str) -> ApiResult<InputFormat> {
        let (kind, rate) = match self {
            Self::Object { kind, rate } => (kind, rate),
            Self::Name(name) => (name, None),
        };
        let wrong = |expected: &str, got: String| {
            Err(ApiError::field(&format!("{place}.format"), expected, got))
        };
        let format = match kind.as_str() {
            "audio/pcm" | "pcm16" => InputFormat::Pcm { rate: rate.unwrap_or(RATES[0]) },
            "audio/pcmu" | "g711_ulaw" => InputFormat::MuLaw,
            "audio/pcma" | "g711_alaw" => InputFormat::ALaw,
            other => {
                let expected = "audio/pcm, audio/pcmu or audio/pcma";
                return wrong(
                    expected,
                    format!("`{}`", other.chars().take(64).collect::<String>()),
                );
            }
        };
        match (format, rate) {
            (InputFormat::Pcm { rate }, _) if !RATES.contains(&rate) => {
                wrong("a rate of 24000 or 16000", rate.to_string())
            }
            (InputFormat::MuLaw | InputFormat::ALaw, Some(rate)) if rate != 8000 => {
                wrong("a rate of 8000 for G.711", rate.to_string())
            }
            _ => Ok(format),
        }
    }
}

/// Fields of `transcription`. Those that it leaves out stay, the model among them.
#[derive(Debug, Default, Deserialize)]
struct TranscriptionUpdate {
    #[serde(default, deserialize_with = "present")]
    model: Option<Option<String>>,
    #[serde(default, deserialize_with = "present")]
    language: Option<Option<String>>,
    #[serde(default, deserialize_with = "present")]
    languages: Option<Option<Vec<String>>>,
    #[serde(default, deserialize_with = "present")]
    prompt: Option<Option<String>>,
    #[serde(default, deserialize_with = "present")]
    keywords: Option<Option<Vec<String>>>,
}

impl TranscriptionUpdate {
    fn apply(self, config: &mut Config) -> ApiResult<()> {
        let limited = |name: &str, n_bytes: usize| {
            let expected = format!("at most {MAX_TEXT_BYTES} bytes");
            let error = || ApiError::field(name, &expected, n_bytes);
            if n_bytes > MAX_TEXT_BYTES { Err(error()) } else { Ok(()) }
        };
        let text = |name: &str, text: Option<String>| {
            let text = text.filter(|text| !text.is_empty());
            limited(name, text.as_ref().map_or(0, String::len)).map(|()| text)
        };
        let list = |name: &str, list: Option<Vec<String>>| {
            let list = list.unwrap_or_default();
            if list.len() > MAX_ENTRIES {
                let expected = format!("at most {MAX_ENTRIES} entries");
                return Err(ApiError::field(name, &expected, list.len()));
            }
            limited(name, list.iter().map(String::len).sum()).map(|()| list)
        };
        if let Some(model) = self.model {
            config.model = text("model", model)?;
        }
        if let Some(language) = self.language {
            config.language = text("language", language)?;
        }
        if let Some(languages) = self.languages {
            config.languages = list("languages", languages)?;
        }
        if let Some(prompt) = self.prompt {
            config.prompt = text("prompt", prompt)?;
        }
        if let Some(keywords) = self.keywords {
            config.keywords = list("keywords", keywords)?;
        }
        Ok(())
    }
}

/// Fields of `turn_detection`.
#[derive(Debug, Default, Deserialize)]
struct TurnUpdate {
    #[serde(rename = "type")]
    kind: Option<String>,
    threshold: Option<f32>,
    prefix_padding_ms: Option<u32>,
    silence_duration_ms: Option<u32>,
    eagerness: Option<String>,
}

impl TurnUpdate {
    /// The detection that takes effect. A semantic one, for which there is no model here, becomes one by silence: the longer
    /// the less eager it is.
    fn vad(self, current: Option<ServerVad>, name: &str) -> ApiResult<ServerVad> {
        let defaults = current.unwrap_or_default();
        let silence_duration_ms = match self.kind.as_deref() {
            None | Some("server_vad") => {
                self.silence_duration_ms.unwrap_or(defaults.silence_duration_ms)
            }
            Some("semantic_vad") => match self.eagerness.as_deref() {
                Some("low") => 1500,
                None | Some("auto" | "medium") => 800,
                Some("high") => 400,
                Some(other) => {
                    let name = format!("{name}.eagerness");
                    let got = format!("`{}`", other.chars().take(64).collect::<String>());
                    return Err(ApiError::field(&name, "low, medium, high or auto", got));
                }
            },
            Some(other) => {
                let got = format!("`{}`", other.chars().take(64).collect::<String>());
                let name = format!("{name}.type");
                return Err(ApiError::field(&name, "server_vad or semantic_vad", got));
            }
        };
        let vad = ServerVad {
            threshold: self.threshold.unwrap_or(defaults.threshold),
            prefix_padding_ms: self.prefix_padding_ms.unwrap_or(defaults.prefix_padding_ms),
            silence_duration_ms,
            ..defaults
        };
        for (field, got, max) in [
            ("prefix_padding_ms", vad.prefix_padding_ms, MAX_PADDING_MS),
            ("silence_duration_ms", vad.silence_duration_ms, MAX_SILENCE_MS),
        ] {
            if got > max {
                let name = format!("{name}.{field}");
                return Err(ApiError::field(&name, &format!("0 to {max}"), got));
            }
        }
        Ok(vad)
    }
}

/// A field that is there, null or not; `None` stands for one that is not.
fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}
