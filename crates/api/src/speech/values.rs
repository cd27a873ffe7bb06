//! Values of the fields of a form, which are texts.

use std::str::FromStr;

use serde_json::Value;

use crate::{ApiError, ApiResult};

/// Format of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(rename_all = "snake_case"))]
pub enum AudioFormat {
    /// `{"text"}`.
    #[default]
    Json,
    /// The text alone.
    Text,
    /// SubRip subtitles.
    Srt,
    /// Segments, words, language, duration.
    VerboseJson,
    /// WebVTT subtitles.
    Vtt,
}

impl FromStr for AudioFormat {
    type Err = ApiError;

    fn from_str(text: &str) -> ApiResult<Self> {
        Ok(match text {
            "json" => Self::Json,
            "text" => Self::Text,
            "srt" => Self::Srt,
            "verbose_json" => Self::VerboseJson,
            "vtt" => Self::Vtt,
            _ => {
                let why = if text == "diarized_json" {
                    ": no model here tells speakers apart"
                } else {
                    ""
                };
                let expected = "json, text, srt, verbose_json or vtt";
                return Err(ApiError::field("response_format", expected, format!("`{text}`{why}")));
            }
        })
    }
}

/// Items of a list that one field holds: JSON, or a single item.
pub(super) fn list(text: &str) -> Vec<String> {
    match serde_json::from_str(text) {
        Ok(Value::Array(items)) => {
            let text = |item| if let Value::String(text) = item { text } else { item.to_string() };
            items.into_iter().map(text).collect()
        }
        _ => vec![text.to_owned()],
    }
}

pub(super) fn number<T: FromStr>(name: &str, text: &str) -> ApiResult<T> {
    text.trim().parse().map_err(|_| ApiError::field(name, "a number", format!("`{text}`")))
}

pub(super) fn boolean(name: &str, text: &str) -> ApiResult<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err(ApiError::field(name, "true or false", format!("`{text}`"))),
    }
}
