//! Objects of an answer as text, and their framing in a stream.

use serde::Serialize;

use crate::ApiError;

/// JSON object of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Name of the event, in dialects whose events have names.
    pub event: Option<&'static str>,
    /// JSON.
    pub data: String,
}

/// Framing of the objects of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Framing {
    /// Server-sent events.
    Events {
        /// Whether `[DONE]` follows the last one.
        ends_with_done: bool,
    },
    /// A line for each object.
    Lines,
}

impl Frame {
    /// Object without an event.
    pub fn new(object: &impl Serialize) -> Self {
        Self { event: None, data: json_text(object) }
    }

    /// Object of the event `event`.
    pub fn named(event: &'static str, object: &impl Serialize) -> Self {
        Self { event: Some(event), data: json_text(object) }
    }
}

/// JSON of an object; that of an error if the object has none, which no answer of this crate is.
fn json_text(object: &impl Serialize) -> String {
    serde_json::to_string(object)
        .unwrap_or_else(|error| ApiError::server(error.to_string()).to_json().to_string())
}
