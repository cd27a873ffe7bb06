//! Events of the server.

use serde::Serialize;

use super::frame::encode;
use super::info::{Info, SpeechModel};
use crate::ApiError;

/// Event of the server.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// Speech models.
    Info(Vec<SpeechModel>),
    /// Answer to a ping, with its text.
    Pong(Option<String>),
    /// The first text follows.
    TranscriptStart {
        /// Code of the language, if it is known.
        language: Option<String>,
    },
    /// Text that is final, with its leading space.
    TranscriptChunk(String),
    /// The whole text.
    Transcript {
        /// Text.
        text: String,
        /// Code of the language, if it is known.
        language: Option<String>,
    },
    /// The last event of a transcript.
    TranscriptStop,
    /// An error.
    Error(ApiError),
}

#[derive(Debug, Serialize)]
struct Text<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    language: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'a str>,
}

impl Answer {
    /// Bytes of the event.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let empty = Text { text: None, language: None, code: None };
        match self {
            Self::Info(models) => encode("info", &Info::of(models)),
            Self::Pong(text) => encode("pong", &Text { text: text.as_deref(), ..empty }),
            Self::TranscriptStart { language } => {
                encode("transcript-start", &Text { language: language.as_deref(), ..empty })
            }
            Self::TranscriptChunk(text) => {
                encode("transcript-chunk", &Text { text: Some(text), ..empty })
            }
            Self::Transcript { text, language } => {
                let data = Text { text: Some(text), language: language.as_deref(), ..empty };
                encode("transcript", &data)
            }
            Self::TranscriptStop => encode("transcript-stop", &empty),
            Self::Error(error) => {
                let data = Text { text: Some(error.message()), code: Some(error.kind()), ..empty };
                encode("error", &data)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Answer;
    use crate::wyoming::{Frame, FrameReader, SpeechModel};

    fn frame(answer: &Answer) -> Frame {
        let mut reader = FrameReader::default();
        reader.push(&answer.to_bytes());
        reader.next_frame().unwrap().unwrap()
    }

    #[test]
    fn answers_are_frames() {
        let language = Some("de".to_owned());
        let transcript = frame(&Answer::Transcript { text: "Hallo.".to_owned(), language });
        assert_eq!(transcript.kind, "transcript");
        assert_eq!(json!(transcript.data), json!({"text": "Hallo.", "language": "de"}));
        // An empty text is still a text.
        let empty = frame(&Answer::Transcript { text: String::new(), language: None });
        assert_eq!(json!(empty.data), json!({"text": ""}));
        assert!(frame(&Answer::TranscriptStop).data.is_empty());
        assert_eq!(json!(frame(&Answer::Pong(Some("x".to_owned()))).data), json!({"text": "x"}));
    }

    #[test]
    fn the_info_has_the_fields_of_home_assistant() {
        let model = SpeechModel { name: "base".to_owned(), is_multilingual: false };
        let info = json!(frame(&Answer::Info(vec![model])).data);
        let program = &info["asr"][0];
        assert_eq!(program["name"], "stonechat");
        assert_eq!(program["supports_transcript_streaming"], true);
        assert_eq!(program["requires_external_vad"], true);
        let model = &program["models"][0];
        assert_eq!((&model["name"], &model["languages"]), (&json!("base"), &json!(["en"])));
        for key in ["attribution", "installed", "description", "version"] {
            assert!(program.get(key).is_some() && model.get(key).is_some(), "{key}");
        }
        assert_eq!((&info["tts"], &info["wake"]), (&json!([]), &json!([])));
        let none = json!(frame(&Answer::Info(Vec::new())).data);
        assert_eq!(none["asr"], json!([]));
    }
}
