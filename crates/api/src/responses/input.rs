//! Items of OpenAI's Responses as messages of chat completions.

use std::collections::HashMap;

use serde::Serialize;
use serde_json::{Map, Value};

use super::tools::joined;
use crate::chat::Call;
use crate::json::{kind_of, to_value};
use crate::{ApiError, ApiResult};

/// Items that record tools of OpenAI's servers and of clients' built-in tools, which no model here has called.
const HOSTED: [&str; 18] = [
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "computer_call",
    "computer_call_output",
    "local_shell_call",
    "local_shell_call_output",
    "shell_call",
    "shell_call_output",
    "apply_patch_call",
    "apply_patch_call_output",
    "mcp_call",
    "mcp_list_tools",
    "mcp_approval_request",
    "mcp_approval_response",
    "tool_search_call",
    "tool_search_output",
];

/// Message of chat completions.
#[derive(Debug, Default, Serialize)]
pub(super) struct Message<'a> {
    role: &'a str,
    content: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    reasoning_content: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Call<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<&'a str>,
}

impl<'a> Message<'a> {
    /// Message of one text.
    pub(super) fn new(role: &'a str, content: String) -> Self {
        Self { role, content, ..Self::default() }
    }
}

/// Text of a custom tool as arguments, for templates that know functions alone.
#[derive(Debug, Serialize)]
struct CustomArguments<'a> {
    input: &'a str,
}

/// Whether an item stands for one of a kept response.
pub(super) fn is_reference(item: &Value) -> bool {
    item["type"] == "item_reference"
}

/// Messages of the field `input`.
///
/// # Errors
/// 400 with the item, what was expected and what was found.
pub(super) fn messages(input: Option<&Value>) -> ApiResult<Vec<Value>> {
    match input {
        Some(Value::String(text)) => Ok(vec![to_value(Message::new("user", text.clone()))?]),
        Some(Value::Array(items)) => item_messages(items),
        other => {
            let got = other.map_or("nothing", kind_of);
            Err(ApiError::field("input", "a string or a list of items", got))
        }
    }
}

/// Messages of items; references have none.
///
/// # Errors
/// 400 with the item, what was expected and what was found.
pub(super) fn item_messages(items: &[Value]) -> ApiResult<Vec<Value>> {
    let mut messages = Messages::default();
    for (index, item) in items.iter().enumerate() {
        messages.item(item, &format!("input[{index}]"))?;
    }
    let mut list = messages.list.into_iter().map(to_value).collect::<ApiResult<Vec<_>>>()?;
    name_results(&mut list);
    Ok(list)
}

/// Names the tools of results whose calls are in the list: some templates write the name.
pub(super) fn name_results(messages: &mut [Value]) {
    let mut names = HashMap::new();
    for message in messages {
        let calls = message.get("tool_calls").and_then(Value::as_array);
        for call in calls.into_iter().flatten() {
            names.insert(call["id"].to_string(), call["function"]["name"].clone());
        }
        let id = message.get("tool_call_id").map(Value::to_string);
        if let (Some(name), Some(fields)) =
            (id.and_then(|id| names.get(&id)), message.as_object_mut())
        {
            fields.insert("name".to_owned(), name.clone());
        }
    }
}

/// Messages of the items so far.
#[derive(Debug, Default)]
struct Messages<'a> {
    list: Vec<Message<'a>>,
    /// Reasoning before the next part of the assistant.
    reasoning: String,
}

impl<'a> Messages<'a> {
    fn item(&mut self, item: &'a Value, name: &str) -> ApiResult<()> {
        let Value::Object(fields) = item else {
            return Err(ApiError::field(name, "an object", kind_of(item)));
        };
        let no_kind = fields.get("type").is_none_or(Value::is_null);
        match fields.get("type").and_then(Value::as_str) {
            None if no_kind && fields.contains_key("role") => self.message(fields, name),
            None if no_kind => {
                let expected = "an item with a `type`, or a message with a `role`";
                Err(ApiError::field(name, expected, "neither"))
            }
            None => {
                let got = kind_of(&fields["type"]);
                Err(ApiError::field(&format!("{name}.type"), "a string", got))
            }
            Some("message") => self.message(fields, name),
            Some("reasoning") => self.reasoning(fields, name),
            Some("function_call") => self.call(fields, "arguments", name),
            Some("custom_tool_call") => self.call(fields, "input", name),
            Some("function_call_output" | "custom_tool_call_output") => self.output(fields, name),
            Some(_) if is_reference(item) => Ok(()),
            Some(kind) if HOSTED.contains(&kind) => Ok(()),
            Some(kind) => {
                let expected = "`message`, `reasoning`, `function_call` or `function_call_output`";
                Err(ApiError::field(&format!("{name}.type"), expected, quoted(kind)))
            }
        }
    }

    fn message(&mut self, fields: &'a Map<String, Value>, name: &str) -> ApiResult<()> {
        let role = string(fields, "role", name)?;
        if !["user", "assistant", "system", "developer"].contains(&role) {
            let expected = "`user`, `assistant`, `system` or `developer`";
            return Err(ApiError::field(&format!("{name}.role"), expected, quoted(role)));
        }
        let content = text(fields.get("content"), &format!("{name}.content"))?;
        // Reasoning that no part of the assistant follows belongs to nothing.
        let reasoning = std::mem::take(&mut self.reasoning);
        let reasoning_content = if role == "assistant" { reasoning } else { String::new() };
        self.list.push(Message { reasoning_content, ..Message::new(role, content) });
        Ok(())
    }

    /// Collects the text of reasoning; encrypted reasoning cannot be read.
    fn reasoning(&mut self, fields: &Map<String, Value>, name: &str) -> ApiResult<()> {
        let has_parts = |field: &&str| {
            fields.get(*field).and_then(Value::as_array).is_some_and(|parts| !parts.is_empty())
        };
        if let Some(field) = ["content", "summary"].into_iter().find(has_parts) {
            let text = text(fields.get(field), &format!("{name}.{field}"))?;
            append(&mut self.reasoning, &text);
        }
        Ok(())
    }

    /// Adds a call to the message of the assistant at the end, if there is one.
    fn call(&mut self, fields: &'a Map<String, Value>, input: &str, name: &str) -> ApiResult<()> {
        let (id, tool) = (string(fields, "call_id", name)?, string(fields, "name", name)?);
        let namespace = fields.get("namespace").and_then(Value::as_str);
        let tool = namespace.map_or_else(|| tool.to_owned(), |namespace| joined(namespace, tool));
        let text = string(fields, input, name)?;
        let arguments = match input {
            "input" => to_value(CustomArguments { input: text })?.to_string(),
            _ => text.to_owned(),
        };
        let reasoning = std::mem::take(&mut self.reasoning);
        if self.list.last().is_none_or(|last| last.role != "assistant") {
            self.list.push(Message::new("assistant", String::new()));
        }
        if let Some(message) = self.list.last_mut() {
            append(&mut message.reasoning_content, &reasoning);
            message.tool_calls.push(Call::new(id, tool, arguments));
        }
        Ok(())
    }

    fn output(&mut self, fields: &'a Map<String, Value>, name: &str) -> ApiResult<()> {
        let id = string(fields, "call_id", name)?;
        let content = text(fields.get("output"), &format!("{name}.output"))?;
        self.list.push(Message { tool_call_id: Some(id), ..Message::new("tool", content) });
        Ok(())
    }
}

/// Appends a text after a line break.
fn append(all: &mut String, text: &str) {
    if !all.is_empty() && !text.is_empty() {
        all.push('\n');
    }
    all.push_str(text);
}

/// Text of a client for an error, shortened.
pub(super) fn quoted(text: &str) -> String {
    format!("`{}`", text.chars().take(80).collect::<String>())
}

/// The field `field` of the item `name`, a string.
fn string<'a>(fields: &'a Map<String, Value>, field: &str, name: &str) -> ApiResult<&'a str> {
    let value = fields.get(field);
    value.and_then(Value::as_str).ok_or_else(|| {
        let got = value.map_or("nothing", kind_of);
        ApiError::field(&format!("{name}.{field}"), "a string", got)
    })
}

/// Text of a content: a string, or parts, which are joined by line breaks.
fn text(content: Option<&Value>, name: &str) -> ApiResult<String> {
    match content {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => {
            let parts = parts.iter().enumerate();
            let texts = parts.map(|(i, part)| part_text(part, &format!("{name}[{i}]")));
            Ok(texts.collect::<ApiResult<Vec<&str>>>()?.join("\n"))
        }
        other => {
            let got = other.map_or("nothing", kind_of);
            Err(ApiError::field(name, "a string or a list of parts", got))
        }
    }
}

fn part_text<'a>(part: &'a Value, name: &str) -> ApiResult<&'a str> {
    let field = match part["type"].as_str() {
        Some("input_text" | "output_text" | "text" | "reasoning_text" | "summary_text") => "text",
        Some("refusal") => "refusal",
        other => {
            let got = match other {
                Some("input_image") => "`input_image`, which needs a model that sees".to_owned(),
                Some("input_file") => {
                    "`input_file`, which no model here reads: send its text as `input_text`"
                        .to_owned()
                }
                Some("input_audio") => {
                    "`input_audio`, which needs a model that hears; recordings go to `/v1/audio/transcriptions`"
                        .to_owned()
                }
                Some(other) => quoted(other),
                None => kind_of(&part["type"]).to_owned(),
            };
            let expected = "`input_text`, `output_text` or `refusal`";
            return Err(ApiError::field(&format!("{name}.type"), expected, got));
        }
    };
    let value = &part[field];
    value
        .as_str()
        .ok_or_else(|| ApiError::field(&format!("{name}.{field}"), "a string", kind_of(value)))
}
