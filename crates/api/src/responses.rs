//! OpenAI's Responses: the fields of a body, kept responses, the length of a prompt.
//!
//! | module | holds |
//! |---|---|
//! | `input` | items, tools and choices in the form of chat completions |
//! | `objects` | the object `response` and the events of a stream |

mod input;
mod objects;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use stonechat::LlmInfo;

use crate::chat_answer::{Chat, ChatContext, ChatDialect, ChatWriter};
use crate::error_shape::responses_code;
use crate::json::{JsonFields, kind_of};
use crate::template::InputTokens;
use crate::text::Frame;
use crate::{ApiError, ApiResult, Defaults};

use objects::{Head, ResponseObjects};

/// Body of OpenAI's Responses.
pub type Responses = Chat<ResponseFields>;

/// Field of a rewritten body with [`OwnFields`].
const OWN: &str = "__response";
/// Fields that must be absent or null.
const REFUSED: [(&str, &str); 4] = [
    ("conversation", "none: `previous_response_id` continues a response"),
    ("prompt", "none: there are no stored prompts"),
    ("context_management", "none: no context is compacted"),
    ("messages", "none: `input` has the messages"),
];

/// Fields that the dialect has alone.
#[derive(Debug, Deserialize)]
pub struct ResponseFields {
    #[serde(rename = "__response")]
    own: OwnFields,
    #[serde(skip)]
    keeper: Option<Keeper>,
}

/// Fields of the dialect in a rewritten body.
#[derive(Debug, Default, Serialize, Deserialize)]
struct OwnFields {
    echo: Echo,
    /// Messages without the instructions, to keep.
    history: Vec<Value>,
    /// Namespace and own name of functions by their joined names.
    namespaces: HashMap<String, [String; 2]>,
}

/// Fields that a response repeats.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default)]
struct Echo {
    background: bool,
    instructions: Option<String>,
    max_output_tokens: Option<u32>,
    max_tool_calls: Option<u32>,
    metadata: BTreeMap<String, String>,
    parallel_tool_calls: bool,
    previous_response_id: Option<String>,
    prompt_cache_key: Option<String>,
    reasoning: Reasoning,
    safety_identifier: Option<String>,
    service_tier: String,
    store: bool,
    temperature: Option<f64>,
    text: TextFields,
    tool_choice: Value,
    tools: Vec<Value>,
    top_logprobs: u32,
    top_p: Option<f64>,
    truncation: String,
    user: Option<String>,
    #[serde(skip_serializing)]
    include: Vec<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct Reasoning {
    effort: Option<String>,
    summary: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default)]
struct TextFields {
    format: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    verbosity: Option<String>,
}

impl Default for TextFields {
    fn default() -> Self {
        Self { format: json!({"type": "text"}), verbosity: None }
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

/// Response to keep for a later request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptResponse {
    /// Identifier.
    pub id: String,
    /// The object `response`.
    pub body: String,
    /// Messages before the answer, a list.
    pub messages: String,
}

/// Receiver of a response at its end, and the identifier of the response.
struct Keeper {
    id: String,
    keep: Box<dyn Fn(KeptResponse) + Send>,
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Events of a stream that fails before its first event.
#[derive(Debug)]
pub struct FailedResponse(Head);

impl FailedResponse {
    /// The events, if agents read this error from a stream: a context that is full, and a request to repeat (Codex does not
    /// read the codes of errors with an HTTP status).
    #[must_use]
    pub fn frames(self, error: &ApiError) -> Option<Vec<Frame>> {
        let is_read = ["context_length_exceeded", "rate_limit_exceeded"];
        let Self(head) = self;
        let fails = is_read.contains(&responses_code(error));
        fails.then(|| ResponseObjects::new(head).error(error))
    }
}

impl Echo {
    /// Parses the fields of a body.
    fn parse(body: &Map<String, Value>) -> ApiResult<Self> {
        // `null` is the default of every field.
        let given = body.iter().filter(|(_, value)| !value.is_null());
        let is_copied = |name: &str| name != "input" && name != "messages";
        let given = given.filter(|(name, _)| is_copied(name));
        let given = given.map(|(name, value)| (name.clone(), value.clone())).collect();
        let echo: Self = JsonFields::new(Value::Object(given))?.take()?;
        if echo.background {
            return Err(ApiError::field("background", "false: no request runs detached", "true"));
        }
        if echo.truncation != "disabled" {
            let got = format!("`{}`", echo.truncation.chars().take(80).collect::<String>());
            return Err(ApiError::field("truncation", "`disabled`", got));
        }
        if echo.top_logprobs > 0 {
            let expected = "0: `/v1/chat/completions` has probabilities";
            return Err(ApiError::field("top_logprobs", expected, echo.top_logprobs));
        }
        if echo.include.iter().any(|name| name == "message.output_text.logprobs") {
            let expected = "no probabilities, which `/v1/chat/completions` has";
            return Err(ApiError::field("include", expected, "`message.output_text.logprobs`"));
        }
        Ok(echo)
    }
}

impl ChatDialect for ResponseFields {
    fn adapt(body: &mut Map<String, Value>) -> ApiResult<()> {
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
        let echo = Echo::parse(body)?;
        let history = input::messages(body.remove("input").as_ref())?;
        let mut tools = input::tools(&echo.tools)?;
        let choice = input::tool_choice(&echo.tool_choice, &mut tools.list)?;
        let instructions = echo.instructions.iter();
        let instructions = instructions.map(|text| json!({"role": "system", "content": text}));
        let messages: Vec<Value> = instructions.chain(history.iter().cloned()).collect();
        body.insert("messages".to_owned(), messages.into());
        body.insert("tools".to_owned(), tools.list.into());
        body.insert("tool_choice".to_owned(), choice);
        body.entry("continue_final_message").or_insert(false.into());
        if let Some(n) = echo.max_output_tokens {
            body.insert("max_tokens".to_owned(), n.into());
        }
        if let Some(format) = response_format(&echo.text.format)? {
            body.insert("response_format".to_owned(), format);
        }
        let own = OwnFields { echo, history, namespaces: tools.namespaces };
        let own = serde_json::to_value(own).map_err(|error| ApiError::server(error.to_string()))?;
        body.insert(OWN.to_owned(), own);
        Ok(())
    }

    fn writer(self, context: &ChatContext<'_>) -> ApiResult<Box<dyn ChatWriter>> {
        let Self { own, keeper } = self;
        let id = keeper.as_ref().map(|keeper| keeper.id.clone());
        let head = Head::new(id, context.model.name, own.echo);
        let mut objects = ResponseObjects::new(head);
        objects.model = Some(context.model.llm.info().model.clone());
        objects.namespaces = own.namespaces;
        if let Some(keeper) = keeper.filter(|_| objects.head.echo.store) {
            objects.kept = Some((keeper, Value::Array(own.history).to_string()));
        }
        Ok(Box::new(objects))
    }
}

/// `response_format` of chat completions; `None` for text.
fn response_format(format: &Value) -> ApiResult<Option<Value>> {
    match format["type"].as_str() {
        _ if format.is_null() => Ok(None),
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(json!({"type": "json_object"}))),
        Some("json_schema") if format["schema"].is_object() => {
            let schema = json!({ "schema": format["schema"] });
            Ok(Some(json!({"type": "json_schema", "json_schema": schema})))
        }
        Some("json_schema") => {
            let got = kind_of(&format["schema"]);
            Err(ApiError::field("text.format.schema", "an object", got))
        }
        other => {
            let got = other.map_or_else(
                || kind_of(&format["type"]).to_owned(),
                |kind| format!("`{}`", kind.chars().take(80).collect::<String>()),
            );
            let expected = "`text`, `json_object` or `json_schema`";
            Err(ApiError::field("text.format.type", expected, got))
        }
    }
}

impl Responses {
    /// Identifier of the response that this one continues.
    #[must_use]
    pub fn previous_response(&self) -> Option<&str> {
        self.own.own.echo.previous_response_id.as_deref()
    }

    /// Puts the messages and the output of a kept response before the input.
    ///
    /// # Errors
    /// If the response is not one that this crate has written.
    pub fn continue_from(&mut self, kept: &KeptResponse) -> ApiResult<()> {
        let parse = |text: &str| {
            serde_json::from_str::<Value>(text).map_err(|error| ApiError::server(error.to_string()))
        };
        let mut body = parse(&kept.body)?;
        let mut history = match parse(&kept.messages)? {
            Value::Array(messages) => messages,
            _ => Vec::new(),
        };
        if let Value::Array(items) = &mut body["output"] {
            // The arguments of a call that was cut off are no JSON.
            items.retain(|item| item["type"] != "function_call" || item["status"] == "completed");
        }
        history.extend(input::messages(body.get("output"))?);
        let messages = &mut self.chat.messages;
        let at = messages.len() - self.own.own.history.len();
        messages.splice(at..at, history.iter().cloned());
        self.own.own.history.splice(..0, history);
        Ok(())
    }

    /// Sets the identifier of the response, and the receiver of the response if the client has it stored.
    pub fn keep(&mut self, id: String, keep: impl Fn(KeptResponse) + Send + 'static) {
        self.own.keeper = Some(Keeper { id, keep: Box::new(keep) });
    }

    /// Events for a stream that fails before it starts.
    #[must_use]
    pub fn failed(&self, model: Option<&str>) -> FailedResponse {
        let id = self.own.keeper.as_ref().map(|keeper| keeper.id.clone());
        FailedResponse(Head::new(id, model.unwrap_or_default(), self.own.own.echo.clone()))
    }

    /// Number of tokens of the prompt.
    ///
    /// # Errors
    /// 400 if a message is invalid, or the template refuses it.
    pub fn input_tokens(self, model: &LlmInfo, defaults: &Defaults<'_>) -> ApiResult<InputTokens> {
        Ok(InputTokens::new(self.chat.n_tokens(model, defaults.chat)?))
    }
}
