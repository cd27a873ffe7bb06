//! Events of the server.

use serde::Serialize;
use stonechat::Word;

use super::action::Dialect;
use super::config::{Config, InputFormat, LOGPROBS, ServerVad};
use crate::ApiError;
use crate::ids::new_id;

/// Smallest probability whose logarithm is sent: JSON has no infinity.
const MIN_PROBABILITY: f64 = 1e-30;

/// Event of the server.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ServerEvent {
    event_id: String,
    #[serde(flatten)]
    body: Body,
}

impl ServerEvent {
    pub(super) fn new(body: Body) -> Self {
        Self { event_id: new_id("event_"), body }
    }

    /// Text of the event.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Texts, numbers and lists of them are always JSON.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The event `error`: of the event `of` of the client, if it is about one.
    #[must_use]
    pub fn error(error: &ApiError, of: Option<String>) -> Self {
        Self::new(Body::Error { error: ErrorView { event_id: of, ..ErrorView::new(error) } })
    }
}

/// Events by their type.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type")]
pub(super) enum Body {
    #[serde(rename = "session.created")]
    Created { session: Box<SessionView> },
    #[serde(rename = "session.updated")]
    Updated { session: Box<SessionView> },
    #[serde(rename = "transcription_session.created")]
    BetaCreated { session: Box<BetaSessionView> },
    #[serde(rename = "transcription_session.updated")]
    BetaUpdated { session: Box<BetaSessionView> },
    #[serde(rename = "input_audio_buffer.speech_started")]
    SpeechStarted { audio_start_ms: u64, item_id: String },
    #[serde(rename = "input_audio_buffer.speech_stopped")]
    SpeechStopped { audio_end_ms: u64, item_id: String },
    #[serde(rename = "input_audio_buffer.committed")]
    Committed { item_id: String, previous_item_id: Option<String> },
    #[serde(rename = "input_audio_buffer.cleared")]
    Cleared {},
    #[serde(rename = "conversation.item.added")]
    ItemAdded { item: ItemView, previous_item_id: Option<String> },
    #[serde(rename = "conversation.item.created")]
    ItemCreated { item: ItemView, previous_item_id: Option<String> },
    #[serde(rename = "conversation.item.done")]
    ItemDone { item: ItemView, previous_item_id: Option<String> },
    #[serde(rename = "conversation.item.input_audio_transcription.delta")]
    Delta {
        item_id: String,
        content_index: usize,
        delta: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        logprobs: Option<Vec<Logprob>>,
    },
    #[serde(rename = "conversation.item.input_audio_transcription.completed")]
    Completed {
        item_id: String,
        content_index: usize,
        transcript: String,
        usage: Usage,
        #[serde(skip_serializing_if = "Option::is_none")]
        logprobs: Option<Vec<Logprob>>,
    },
    #[serde(rename = "conversation.item.input_audio_transcription.failed")]
    Failed { item_id: String, content_index: usize, error: ErrorView },
    #[serde(rename = "error")]
    Error { error: ErrorView },
}

/// Fields of an error.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct ErrorView {
    #[serde(rename = "type")]
    kind: &'static str,
    code: Option<String>,
    message: String,
    param: Option<String>,
    event_id: Option<String>,
}

impl ErrorView {
    pub(super) fn new(error: &ApiError) -> Self {
        let code = match error.status() {
            404 => Some("model_not_found"),
            429 => Some("rate_limit_exceeded"),
            _ => error.code(),
        };
        Self {
            kind: error.kind(),
            code: code.map(str::to_owned),
            message: error.message().to_owned(),
            param: error.param().map(str::to_owned),
            event_id: None,
        }
    }
}

/// Length of the transcribed audio.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Usage {
    #[serde(rename = "type")]
    kind: &'static str,
    seconds: f64,
}

impl Usage {
    pub(super) fn of(seconds: f64) -> Self {
        Self { kind: "duration", seconds: (seconds * 1000.0).round() / 1000.0 }
    }
}

/// Log-probability of a word.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Logprob {
    token: String,
    logprob: f64,
    bytes: Vec<u8>,
}

impl From<&Word> for Logprob {
    fn from(word: &Word) -> Self {
        let Word { word, probability, .. } = word;
        let logprob = probability.max(MIN_PROBABILITY).ln();
        Self { token: word.clone(), logprob, bytes: word.as_bytes().to_vec() }
    }
}

/// An utterance in the conversation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct ItemView {
    id: String,
    object: &'static str,
    #[serde(rename = "type")]
    kind: &'static str,
    status: &'static str,
    role: &'static str,
    content: [ContentView; 1],
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct ContentView {
    #[serde(rename = "type")]
    kind: &'static str,
    transcript: Option<String>,
}

impl ItemView {
    pub(super) fn new(id: &str, transcript: Option<String>) -> Self {
        Self {
            id: id.to_owned(),
            object: "realtime.item",
            kind: "message",
            status: "completed",
            role: "user",
            content: [ContentView { kind: "input_audio", transcript }],
        }
    }
}

/// A session in the GA interface.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct SessionView {
    #[serde(rename = "type")]
    kind: &'static str,
    object: &'static str,
    id: String,
    audio: AudioView,
    include: Vec<&'static str>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct AudioView {
    input: InputView,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct InputView {
    format: FormatView,
    transcription: TranscriptionView,
    noise_reduction: Option<()>,
    turn_detection: Option<ServerVad>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct FormatView {
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    rate: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct TranscriptionView {
    model: Option<String>,
    language: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    languages: Vec<String>,
    prompt: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    keywords: Vec<String>,
}

impl TranscriptionView {
    fn new(config: &Config) -> Self {
        Self {
            model: config.model.clone(),
            language: config.language.clone(),
            languages: config.languages.clone(),
            prompt: config.prompt.clone(),
            keywords: config.keywords.clone(),
        }
    }
}

/// A session in the beta interface.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct BetaSessionView {
    object: &'static str,
    id: String,
    input_audio_format: &'static str,
    input_audio_transcription: TranscriptionView,
    input_audio_noise_reduction: Option<()>,
    turn_detection: Option<ServerVad>,
    include: Vec<&'static str>,
}

const SESSION: &str = "realtime.transcription_session";

/// Event of a session that is created or updated.
pub(super) fn session(id: &str, config: &Config, dialect: Dialect, is_created: bool) -> Body {
    match dialect {
        Dialect::Ga => {
            let session = Box::new(view(id, config));
            if is_created { Body::Created { session } } else { Body::Updated { session } }
        }
        Dialect::Beta => {
            let session = Box::new(BetaSessionView {
                object: SESSION,
                id: id.to_owned(),
                input_audio_format: match config.format {
                    InputFormat::Pcm { .. } => "pcm16",
                    InputFormat::MuLaw => "g711_ulaw",
                    InputFormat::ALaw => "g711_alaw",
                },
                input_audio_transcription: TranscriptionView::new(config),
                input_audio_noise_reduction: None,
                turn_detection: config.turn_detection,
                include: include(config),
            });
            if is_created { Body::BetaCreated { session } } else { Body::BetaUpdated { session } }
        }
    }
}

/// A session in the GA interface.
pub(super) fn view(id: &str, config: &Config) -> SessionView {
    let (kind, rate) = match config.format {
        InputFormat::Pcm { rate } => ("audio/pcm", Some(rate)),
        InputFormat::MuLaw => ("audio/pcmu", None),
        InputFormat::ALaw => ("audio/pcma", None),
    };
    let input = InputView {
        format: FormatView { kind, rate },
        transcription: TranscriptionView::new(config),
        noise_reduction: None,
        turn_detection: config.turn_detection,
    };
    SessionView {
        kind: "transcription",
        object: SESSION,
        id: id.to_owned(),
        audio: AudioView { input },
        include: include(config),
    }
}

fn include(config: &Config) -> Vec<&'static str> {
    if config.has_logprobs { vec![LOGPROBS] } else { Vec::new() }
}
