//! Input of a chat template.

use serde::{Deserialize, Serialize};

/// Input of a template: messages in the form of OpenAI's chat API, tools, and further variables.
///
/// Messages are kept as JSON, so that every field of a client reaches the template: `role`,
/// `content` as a string or a list of parts, `name`, `tool_calls`, `tool_call_id`,
/// `reasoning_content`, …
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Conversation {
    /// The messages, oldest first; each an object.
    pub messages: Vec<serde_json::Value>,
    /// The definitions of tools: a list of objects.
    #[serde(default)]
    pub tools: Option<serde_json::Value>,
    /// The documents of retrieval templates: a list of objects.
    #[serde(default)]
    pub documents: Option<serde_json::Value>,
    /// Whether the prompt ends where the assistant's answer begins.
    #[serde(default)]
    pub add_generation_prompt: bool,
    /// Whether the prompt ends with the content of the last message, a string, which the answer continues.
    #[serde(default)]
    pub continues: bool,
    /// The time that `strftime_now` shows, in seconds after 1970-01-01 00:00:00 of the clock to be
    /// shown (local time, if the caller wants that); without it the system's clock, in UTC.
    #[serde(default)]
    pub now: Option<i64>,
    /// Further variables of the template: `enable_thinking`, `date_string`, ….
    #[serde(default)]
    pub variables: serde_json::Map<String, serde_json::Value>,
}
