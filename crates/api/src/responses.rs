//! OpenAI's Responses: a body as that of a chat, kept responses, the length of a prompt.
//!
//! | module | holds |
//! |---|---|
//! | `fields` | fields that a response repeats |
//! | `input`, `tools` | items, tools and choices in the form of chat completions |
//! | `items`, `objects` | the object `response`, its items, the events of a stream |
//! | `writer` | the answer from the parts of a chat |

mod fields;
mod input;
mod items;
mod objects;
#[cfg(test)]
mod tests;
mod tools;
mod writer;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use stonechat::LlmInfo;

use crate::chat_answer::{Chat, ChatContext, ChatDialect, ChatWriter};
use crate::error_shape::responses_code;
use crate::json::to_value;
use crate::template::InputTokens;
use crate::text::Frame;
use crate::{ApiError, ApiResult, Defaults};

use fields::Echo;
use input::Message;
use objects::Head;
use writer::ResponseWriter;

/// Body of OpenAI's Responses.
pub type Responses = Chat<ResponseFields>;

/// Field of a rewritten body with [`OwnFields`].
const OWN: &str = "__response";

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
    /// Items of the input, if some of them stand for kept ones.
    items: Option<Vec<Value>>,
    /// Messages without the instructions, to keep.
    history: Vec<Value>,
    /// Namespace and own name of functions by their joined names.
    namespaces: HashMap<String, [String; 2]>,
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
    /// Identifiers of the output items.
    pub items: Vec<String>,
}

/// Output of a kept response.
#[derive(Debug, Deserialize)]
struct KeptOutput {
    output: Vec<Value>,
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
        fails.then(|| ResponseWriter::new(head).error(error))
    }
}

impl KeptResponse {
    /// Output items. The arguments of a call that was cut off are no JSON: it is left out.
    fn output(&self) -> ApiResult<Vec<Value>> {
        let KeptOutput { mut output } = parse(&self.body)?;
        output.retain(|item| item["type"] != "function_call" || item["status"] == "completed");
        Ok(output)
    }
}

/// Parses a text that this crate has written.
fn parse<T: DeserializeOwned>(text: &str) -> ApiResult<T> {
    serde_json::from_str(text).map_err(|error| ApiError::server(error.to_string()))
}

impl ChatDialect for ResponseFields {
    fn adapt(body: &mut Map<String, Value>) -> ApiResult<()> {
        let echo = Echo::parse(body)?;
        let input = body.remove("input");
        let history = input::messages(input.as_ref())?;
        let items = match input {
            Some(Value::Array(items)) if items.iter().any(input::is_reference) => Some(items),
            _ => None,
        };
        let mut tools = tools::tools(&echo.tools)?;
        let choice = tools::tool_choice(&echo.tool_choice, &mut tools.list)?;
        let mut messages = Vec::with_capacity(history.len() + 1);
        if let Some(text) = &echo.instructions {
            messages.push(to_value(Message::new("system", text.clone()))?);
        }
        messages.extend_from_slice(&history);
        body.insert("messages".to_owned(), messages.into());
        body.insert("tools".to_owned(), tools.list.into());
        body.insert("tool_choice".to_owned(), choice);
        body.entry("continue_final_message").or_insert(false.into());
        if let Some(n) = echo.max_output_tokens {
            body.insert("max_tokens".to_owned(), n.into());
        }
        if let Some(format) = echo.text.response_format()? {
            body.insert("response_format".to_owned(), to_value(format)?);
        }
        let own = OwnFields { echo, items, history, namespaces: tools.namespaces };
        body.insert(OWN.to_owned(), to_value(own)?);
        Ok(())
    }

    fn writer(self, context: &ChatContext<'_>) -> ApiResult<Box<dyn ChatWriter>> {
        let Self { own, keeper } = self;
        let id = keeper.as_ref().map(|keeper| keeper.id.clone());
        let mut writer = ResponseWriter::new(Head::new(id, context.model.name, own.echo));
        writer.namespaces = own.namespaces;
        if let Some(keeper) = keeper.filter(|_| writer.head.echo.store) {
            writer.kept = Some((keeper, Value::Array(own.history).to_string()));
        }
        Ok(Box::new(writer))
    }
}

impl Responses {
    /// Puts items of kept responses, which `find` knows by the identifiers of the items, in the place of references: the AI
    /// SDK sends these for all that it has received.
    ///
    /// # Errors
    /// 404 for an item that is not kept; 400 if an item is invalid.
    pub fn resolve(&mut self, find: impl Fn(&str) -> Option<Arc<KeptResponse>>) -> ApiResult<()> {
        let Some(items) = self.own.own.items.take() else { return Ok(()) };
        let mut resolved = Vec::with_capacity(items.len());
        let (mut outputs, mut seen) = (HashMap::<String, Vec<Value>>::new(), HashSet::new());
        for (index, item) in items.into_iter().enumerate() {
            if !input::is_reference(&item) {
                resolved.push(item);
                continue;
            }
            let id = item["id"].as_str().unwrap_or_default();
            // A short reference must not stand for a large item many times.
            if !seen.insert(id.to_owned()) {
                continue;
            }
            let Some(kept) = find(id) else { return Err(unknown_item(index, id)) };
            let output = match outputs.entry(kept.id.clone()) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => entry.insert(kept.output()?),
            };
            resolved.extend(output.iter().find(|item| item["id"] == id).cloned());
        }
        let history = input::item_messages(&resolved)?;
        self.replace_history(history);
        Ok(())
    }

    /// Replaces the messages after the instructions.
    fn replace_history(&mut self, history: Vec<Value>) {
        let messages = &mut self.chat.messages;
        messages.truncate(messages.len() - self.own.own.history.len());
        messages.extend_from_slice(&history);
        self.own.own.history = history;
    }

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
        let mut history: Vec<Value> = parse(&kept.messages)?;
        history.extend(input::item_messages(&kept.output()?)?);
        history.extend_from_slice(&self.own.own.history);
        input::name_results(&mut history);
        self.replace_history(history);
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

/// Error of a reference to an item that is not kept; another client's item looks the same.
fn unknown_item(index: usize, id: &str) -> ApiError {
    let param = format!("input[{index}]");
    let id = input::quoted(id);
    let message = format!(
        "`{param}`: no item {id}: its response was not stored, was deleted, or had to make room for others"
    );
    ApiError::not_found(message).with_param(param)
}
