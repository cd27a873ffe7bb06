//! Place of the reasoning in an answer, and the reasoning of chats that do not say otherwise.

use std::str::FromStr;

use serde_json::{Map, Value};

/// Place of the reasoning in an answer, `reasoning_format` of llama-server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReasoningFormat {
    /// A field of its own: `auto` and `deepseek`.
    #[default]
    Field,
    /// The content, with the markers of the model: `none`.
    Content,
    /// The content of a stream, and a field of an answer in one piece: `deepseek-legacy`.
    ContentOfStream,
}

impl ReasoningFormat {
    /// Names, for messages.
    pub(crate) const NAMES: &str = "`auto`, `deepseek`, `deepseek-legacy` or `none`";

    /// Whether the reasoning is no part of the content.
    pub(crate) fn is_split(self, is_stream: bool) -> bool {
        match self {
            Self::Field => true,
            Self::Content => false,
            Self::ContentOfStream => !is_stream,
        }
    }
}

impl FromStr for ReasoningFormat {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "auto" | "deepseek" => Ok(Self::Field),
            "none" => Ok(Self::Content),
            "deepseek-legacy" => Ok(Self::ContentOfStream),
            _ => Err(format!("expected {}, got `{name}`", Self::NAMES)),
        }
    }
}

/// Reasoning and variables of the template of chats that do not say otherwise.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ChatDefaults {
    /// Whether the model reasons; `None`: as its template has it.
    pub thinking: Option<bool>,
    /// Maximum tokens of reasoning.
    pub reasoning_budget: Option<usize>,
    /// Place of the reasoning.
    pub reasoning_format: ReasoningFormat,
    /// Variables of the chat template.
    pub variables: Map<String, Value>,
}
