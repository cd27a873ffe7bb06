//! Events of the client.

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::Deserialize;
use serde_json::Value;

use super::config::SessionUpdate;
use super::{MAX_AUDIO_BYTES, MAX_MESSAGE_BYTES};
use crate::json::from_bytes;
use crate::{ApiError, ApiResult};

/// Base64 with or without padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Maximum characters of an identifier that an error repeats.
const MAX_ID_CHARS: usize = 512;

/// Event of the client.
#[derive(Debug)]
pub(super) enum ClientEvent {
    /// `session.update` or the beta's `transcription_session.update`.
    Update { session: Box<SessionUpdate>, is_beta: bool },
    /// `input_audio_buffer.append`: bytes in the format of the session.
    Append(Vec<u8>),
    /// `input_audio_buffer.commit`.
    Commit,
    /// `input_audio_buffer.clear`.
    Clear,
}

/// Message of the client: its identifier, and the event or the error of the message.
#[derive(Debug)]
pub(super) struct ClientMessage {
    pub(super) event_id: Option<String>,
    pub(super) event: ApiResult<ClientEvent>,
}

/// Fields of all events.
#[derive(Debug, Deserialize)]
struct Fields {
    #[serde(rename = "type")]
    kind: String,
    audio: Option<String>,
    session: Option<Box<SessionUpdate>>,
}

/// The identifier alone, for errors of the other fields.
#[derive(Debug, Deserialize)]
struct Identifier {
    #[serde(default)]
    event_id: Value,
}

impl ClientMessage {
    /// Parses a message.
    pub(super) fn parse(text: &str) -> Self {
        if text.len() > MAX_MESSAGE_BYTES {
            let message =
                format!("the message is too large: expected at most {MAX_MESSAGE_BYTES} bytes");
            return Self { event_id: None, event: Err(ApiError::bad_request(message)) };
        }
        let identifier = serde_json::from_str(text).map(|Identifier { event_id }| event_id);
        let event_id = match identifier {
            Ok(Value::String(id)) => Some(id.chars().take(MAX_ID_CHARS).collect()),
            _ => None,
        };
        let event = from_bytes(text.as_bytes()).and_then(Fields::event);
        Self { event_id, event }
    }
}

impl Fields {
    fn event(self) -> ApiResult<ClientEvent> {
        let Self { kind, audio, session } = self;
        match kind.as_str() {
            "session.update" | "transcription_session.update" => {
                let missing = || ApiError::field("session", "an object", "none");
                let is_beta = kind.starts_with("transcription");
                Ok(ClientEvent::Update { session: session.ok_or_else(missing)?, is_beta })
            }
            "input_audio_buffer.append" => {
                let missing = || ApiError::field("audio", "audio in base64", "none");
                decode(&audio.ok_or_else(missing)?).map(ClientEvent::Append)
            }
            "input_audio_buffer.commit" => Ok(ClientEvent::Commit),
            "input_audio_buffer.clear" => Ok(ClientEvent::Clear),
            other => {
                let other: String = other.chars().take(64).collect();
                let expected = "session.update, transcription_session.update, input_audio_buffer.append, \
                    input_audio_buffer.commit or input_audio_buffer.clear";
                Err(ApiError::field("type", expected, format!("`{other}`")))
            }
        }
    }
}

fn decode(audio: &str) -> ApiResult<Vec<u8>> {
    if audio.len() > MAX_AUDIO_BYTES {
        let expected = format!("at most {MAX_AUDIO_BYTES} bytes of base64");
        return Err(ApiError::field("audio", &expected, audio.len()));
    }
    BASE64.decode(audio).map_err(|error| ApiError::field("audio", "base64", error))
}

#[cfg(test)]
mod tests {
    use super::{ClientEvent, ClientMessage};

    #[track_caller]
    fn error(text: &str) -> (Option<String>, String) {
        let ClientMessage { event_id, event } = ClientMessage::parse(text);
        (event_id, event.unwrap_err().message().to_owned())
    }

    #[test]
    fn errors_have_the_identifier_of_the_event() {
        for (text, id, expected) in [
            ("", None, "expected a JSON body"),
            ("{", None, "EOF"),
            ("[1]", None, "invalid type"),
            (r#"{"event_id": "e"}"#, Some("e"), "missing field `type`"),
            (r#"{"event_id": 7, "type": "x"}"#, None, "got `x`"),
            (r#"{"event_id": "e", "type": "response.create"}"#, Some("e"), "got `response.create`"),
            (
                r#"{"event_id": "e", "type": "session.update"}"#,
                Some("e"),
                "`session`: expected an object, got none",
            ),
            (
                r#"{"event_id": "e", "type": "session.update", "session": 5}"#,
                Some("e"),
                "`session`",
            ),
            (r#"{"event_id": "e", "type": "input_audio_buffer.append"}"#, Some("e"), "`audio`"),
            (
                r#"{"event_id": "e", "type": "input_audio_buffer.append", "audio": "a b"}"#,
                Some("e"),
                "`audio`: expected base64",
            ),
        ] {
            let (got, message) = error(text);
            assert_eq!(got.as_deref(), id, "{text}");
            assert!(message.contains(expected), "{text}: {message}");
        }
    }

    #[test]
    fn audio_has_padding_or_not() {
        for audio in ["AAAB/w==", "AAAB/w"] {
            let text = format!(r#"{{"type": "input_audio_buffer.append", "audio": "{audio}"}}"#);
            let Ok(ClientEvent::Append(bytes)) = ClientMessage::parse(&text).event else {
                panic!("no audio")
            };
            assert_eq!(bytes, [0, 0, 1, 0xff]);
        }
    }

    #[test]
    fn large_and_deep_messages_are_refused() {
        let audio = "A".repeat(super::MAX_AUDIO_BYTES + 4);
        let text = format!(r#"{{"type": "input_audio_buffer.append", "audio": "{audio}"}}"#);
        assert!(error(&text).1.contains("at most 15728640 bytes"));
        let text = "x".repeat(super::MAX_MESSAGE_BYTES + 1);
        assert!(error(&text).1.contains("too large"));
        let deep = format!(r#"{{"type": "a", "session": {}1{}}}"#, "[".repeat(70), "]".repeat(70));
        assert!(error(&deep).1.contains("at most 64 levels"));
    }
}
