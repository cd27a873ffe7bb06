//! A body of Ollama: a request for text, or the load or unload of a model.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::fields::unloads;
use crate::json::{ParseBody, from_bytes};
use crate::text::{Body, Dialect};
use crate::{ApiError, ApiResult, Defaults};

/// Use of the model that a body wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// A text.
    Text,
    /// The model in memory, without a text.
    Load,
    /// The memory of the model.
    Unload,
}

/// Body of a request for generated text.
#[derive(Debug)]
pub struct OllamaBody<T> {
    model: String,
    wanted: Action,
    unloads: bool,
    is_stream: bool,
    num_ctx: Option<f64>,
    /// Absent without a text.
    text: Option<Body<T>>,
}

/// Fields that tell what a body wants.
#[derive(Debug, Deserialize)]
struct Head {
    #[serde(default)]
    model: String,
    #[serde(default)]
    messages: Option<Vec<IgnoredAny>>,
    #[serde(default)]
    prompt: Option<Text>,
    #[serde(default)]
    suffix: Option<Text>,
    #[serde(default)]
    keep_alive: Option<Value>,
    #[serde(default)]
    stream: Option<bool>,
    #[serde(default)]
    options: Option<Options>,
}

/// A string of which only the length counts; other kinds are refused when the text is prepared.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Text {
    Text(String),
    Other(IgnoredAny),
}

/// Options of the context; a client may write them as floats.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Options {
    Known {
        #[serde(default)]
        num_ctx: Option<f64>,
    },
    Other(IgnoredAny),
}

impl Text {
    fn is_empty(text: Option<&Self>) -> bool {
        match text {
            None => true,
            Some(Self::Text(text)) => text.is_empty(),
            Some(Self::Other(_)) => false,
        }
    }
}

impl<T: Dialect> ParseBody for OllamaBody<T> {
    fn parse(body: &[u8], defaults: &Defaults<'_>) -> ApiResult<Self> {
        let head: Head = from_bytes(body)?;
        if head.model.is_empty() {
            return Err(ApiError::field("model", "the name of a model", "none"));
        }
        let unloads = unloads(head.keep_alive.as_ref())?;
        let has_text = head.messages.is_some_and(|messages| !messages.is_empty())
            || !Text::is_empty(head.prompt.as_ref())
            || !Text::is_empty(head.suffix.as_ref());
        let wanted = match (has_text, unloads) {
            (true, _) => Action::Text,
            (false, false) => Action::Load,
            (false, true) => Action::Unload,
        };
        let text = has_text.then(|| Body::parse(body, defaults)).transpose()?;
        Ok(Self {
            model: head.model,
            wanted,
            unloads,
            is_stream: head.stream.unwrap_or(true),
            num_ctx: match head.options {
                Some(Options::Known { num_ctx }) => num_ctx,
                _ => None,
            },
            text,
        })
    }
}

impl<T> OllamaBody<T> {
    /// Name of the model.
    #[must_use]
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Use of the model.
    #[must_use]
    pub fn wanted(&self) -> Action {
        self.wanted
    }

    /// Whether the model is unloaded after the text.
    #[must_use]
    pub fn unloads(&self) -> bool {
        self.unloads
    }

    /// Whether the answer is a stream.
    #[must_use]
    pub fn is_stream(&self) -> bool {
        self.is_stream
    }

    /// Context that the client expects, in tokens.
    #[must_use]
    pub fn num_ctx(&self) -> Option<f64> {
        self.num_ctx
    }

    /// Request for the text, of the model `name`; `None` without one.
    #[must_use]
    pub fn into_text(self, name: &str) -> Option<Body<T>> {
        self.text.map(|mut text| {
            text.set_model(name);
            text
        })
    }
}
