//! Fields of Responses that an answer repeats.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::input::quoted;
use crate::generation::ResponseFormat;
use crate::json::{JsonFields, kind_of};
use crate::{ApiError, ApiResult};

/// Fields that must be absent or null.
const REFUSED: [(&str, &str); 4] = [
    ("conversation", "none: `previous_response_id` continues a response"),
    ("prompt", "none: there are no stored prompts"),
    ("context_management", "none: no context is compacted"),
    ("messages", "none: `input` has the messages"),
];

/// Fields that a response repeats.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Echo {
    background: bool,
    pub(super) instructions: Option<String>,
    pub(super) max_output_tokens: Option<u32>,
    max_tool_calls: Option<u32>,
    metadata: BTreeMap<String, String>,
    parallel_tool_calls: bool,
    pub(super) previous_response_id: Option<String>,
    prompt_cache_key: Option<String>,
    pub(super) reasoning: Reasoning,
    safety_identifier: Option<String>,
    service_tier: String,
    pub(super) store: bool,
    temperature: Option<f64>,
    pub(super) text: TextFields,
    pub(super) tool_choice: Value,
    pub(super) tools: Vec<Value>,
    top_logprobs: u32,
    top_p: Option<f64>,
    truncation: String,
    user: Option<String>,
    #[serde(skip_serializing)]
    include: Vec<String>,
}

/// Options of reasoning.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Reasoning {
    effort: Option<String>,
    /// Asks for a summary: the whole reasoning takes its place, and is not sent twice.
    pub(super) summary: Option<Summary>,
}

/// Length of a summary, which has no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Summary {
    Auto,
    Concise,
    Detailed,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct TextFields {
    /// Format; null: text.
    format: Option<TextFormat>,
    #[serde(skip_serializing_if = "Option::is_none")]
    verbosity: Option<String>,
}

/// Format of the text.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct TextFormat {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    schema: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    strict: Option<bool>,
}

impl Default for TextFields {
    fn default() -> Self {
        let kind = "text".to_owned();
        let format = TextFormat { kind, name: None, description: None, schema: None, strict: None };
        Self { format: Some(format), verbosity: None }
    }
}

impl Default for Echo {
    fn default() -> Self {
        Self {
            background: false,
            instructions: None,
            max_output_tokens: None,
            max_tool_calls: None,
            metadata: BTreeMap::new(),
            parallel_tool_calls: true,
            previous_response_id: None,
            prompt_cache_key: None,
            reasoning: Reasoning::default(),
            safety_identifier: None,
            service_tier: "default".to_owned(),
            store: true,
            temperature: None,
            text: TextFields::default(),
            tool_choice: "auto".into(),
            tools: Vec::new(),
            top_logprobs: 0,
            top_p: None,
            truncation: "disabled".to_owned(),
            user: None,
            include: Vec::new(),
        }
    }
}

impl Echo {
    /// Parses the fields of a body.
    ///
    /// # Errors
    /// 400 with the field.
    pub(super) fn parse(body: &Map<String, Value>) -> ApiResult<Self> {
        for (name, expected) in REFUSED {
            if let Some(value) = body.get(name).filter(|value| !value.is_null()) {
                return Err(ApiError::field(name, expected, kind_of(value)));
            }
        }
        for name in ["n", "n_cmpl"] {
            if let Some(n) = body.get(name).filter(|n| !n.is_null() && **n != 1) {
                return Err(ApiError::field(name, "1", n));
            }
        }
        // `null` is the default of every field.
        let given = body.iter().filter(|(name, value)| *name != "input" && !value.is_null());
        let given = given.map(|(name, value)| (name.clone(), value.clone())).collect();
        let mut echo: Self = JsonFields::new(Value::Object(given))?.take()?;
        if echo.background {
            return Err(ApiError::field("background", "false: no request runs detached", "true"));
        }
        if echo.truncation != "disabled" {
            return Err(ApiError::field("truncation", "`disabled`", quoted(&echo.truncation)));
        }
        if echo.top_logprobs > 0 {
            let expected = "0: `/v1/chat/completions` has probabilities";
            return Err(ApiError::field("top_logprobs", expected, echo.top_logprobs));
        }
        if echo.include.iter().any(|name| name == "message.output_text.logprobs") {
            let expected = "no probabilities, which `/v1/chat/completions` has";
            return Err(ApiError::field("include", expected, "`message.output_text.logprobs`"));
        }
        if echo.text.format.is_none() {
            echo.text.format = TextFields::default().format;
        }
        Ok(echo)
    }
}

impl TextFields {
    /// `response_format` of chat completions; `None` for text.
    ///
    /// # Errors
    /// 400 for another format, or one without its schema.
    pub(super) fn response_format(&self) -> ApiResult<Option<ResponseFormat>> {
        let Some(format) = &self.format else { return Ok(None) };
        let object = |schema| {
            // A schema makes the grammar; the name and the description have no effect.
            let kind = "json_object".to_owned();
            Ok(Some(ResponseFormat { kind, schema, json_schema: None }))
        };
        match (format.kind.as_str(), &format.schema) {
            ("text", _) => Ok(None),
            ("json_object", _) => object(None),
            ("json_schema", Some(schema @ Value::Object(_))) => object(Some(schema.clone())),
            ("json_schema", other) => {
                let got = other.as_ref().map_or("nothing", kind_of);
                Err(ApiError::field("text.format.schema", "an object", got))
            }
            (other, _) => {
                let expected = "`text`, `json_object` or `json_schema`";
                Err(ApiError::field("text.format.type", expected, quoted(other)))
            }
        }
    }
}
