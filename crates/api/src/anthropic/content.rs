//! Content blocks of Anthropic's messages as messages of a chat.

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::chat_messages::{message, tool_call};
use crate::json::kind_of;
use crate::{ApiError, ApiResult};

/// Start of the result of a tool that failed, which templates cannot mark.
const ERROR: &str = "Error: ";

/// System prompt: a string, or text blocks.
pub(super) fn system(content: Value, name: &str) -> ApiResult<Value> {
    Ok(message("system", text_of(content, name)?))
}

/// Appends the messages of the field `messages`.
pub(super) fn messages(messages: Option<Value>, out: &mut Vec<Value>) -> ApiResult<()> {
    let messages = match messages {
        Some(Value::Array(messages)) if !messages.is_empty() => messages,
        Some(Value::Array(_)) => {
            return Err(ApiError::field("messages", "at least one message", "none"));
        }
        other => {
            let got = other.as_ref().map_or("nothing", kind_of);
            return Err(ApiError::field("messages", "a list of messages", got));
        }
    };
    let mut names = HashMap::new();
    for (index, message) in messages.into_iter().enumerate() {
        let name = format!("messages[{index}]");
        let Value::Object(mut message) = message else {
            return Err(ApiError::field(&name, "an object", kind_of(&message)));
        };
        let content = message.remove("content").unwrap_or_default();
        let at = format!("{name}.content");
        match message.get("role").and_then(Value::as_str) {
            Some("user") => user(content, &at, &names, out)?,
            Some("assistant") => out.push(assistant(content, &at, &mut names)?),
            Some("system") => out.push(system(content, &at)?),
            other => {
                let got = other.map_or("nothing".to_owned(), |role| format!("`{role}`"));
                let expected = "`user`, `assistant` or `system`";
                return Err(ApiError::field(&format!("{name}.role"), expected, got));
            }
        }
    }
    Ok(())
}

/// Text blocks and results of tools of the user, in their order. `names` are the tools of the calls so far.
fn user(
    content: Value,
    name: &str,
    names: &HashMap<String, String>,
    out: &mut Vec<Value>,
) -> ApiResult<()> {
    let mut text: Option<String> = None;
    for (mut block, at) in blocks(content, name)? {
        if block.kind != "tool_result" {
            let part = block.text(&at)?;
            match &mut text {
                None => text = Some(part),
                Some(text) => {
                    text.push('\n');
                    text.push_str(&part);
                }
            }
            continue;
        }
        out.extend(text.take().map(|text| message("user", text)));
        out.push(block.tool_result(&at, names)?);
    }
    out.extend(text.map(|text| message("user", text)));
    Ok(())
}

/// A message of the assistant. Its calls are added to `names`.
fn assistant(content: Value, name: &str, names: &mut HashMap<String, String>) -> ApiResult<Value> {
    let (mut text, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
    for (mut block, at) in blocks(content, name)? {
        match block.kind.as_str() {
            "thinking" => reasoning.push_str(&block.string("thinking", &at)?),
            // The content is encrypted by Anthropic.
            "redacted_thinking" => {}
            "tool_use" => {
                let (id, tool) = (block.string("id", &at)?, block.string("name", &at)?);
                let input = match block.fields.remove("input") {
                    Some(input @ Value::Object(_)) => input.to_string(),
                    other => {
                        let got = other.as_ref().map_or("nothing", kind_of);
                        return Err(ApiError::field(&format!("{at}.input"), "an object", got));
                    }
                };
                calls.push(tool_call(&id, &tool, &input));
                names.insert(id, tool);
            }
            _ => text.push_str(&block.text(&at)?),
        }
    }
    let mut message = message("assistant", text);
    if !reasoning.is_empty() {
        message["reasoning_content"] = reasoning.into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    Ok(message)
}

/// Content block.
struct Block {
    kind: String,
    fields: Map<String, Value>,
}

/// Block of a text.
fn text_block(text: String) -> Value {
    let fields = [("type", "text".into()), ("text", Value::String(text))];
    fields.into_iter().collect()
}

/// Content blocks with their names in errors; a string is one of text.
fn blocks(content: Value, name: &str) -> ApiResult<Vec<(Block, String)>> {
    let items = match content {
        Value::String(text) => vec![text_block(text)],
        Value::Array(items) => items,
        other => {
            let expected = "a string or a list of content blocks";
            return Err(ApiError::field(name, expected, kind_of(&other)));
        }
    };
    let block = |(index, item): (usize, Value)| {
        let at = format!("{name}[{index}]");
        let Value::Object(fields) = item else {
            return Err(ApiError::field(&at, "an object", kind_of(&item)));
        };
        match fields.get("type") {
            Some(Value::String(kind)) => Ok((Block { kind: kind.clone(), fields }, at)),
            other => {
                let got = other.map_or("nothing", kind_of);
                Err(ApiError::field(&format!("{at}.type"), "a string", got))
            }
        }
    };
    items.into_iter().enumerate().map(block).collect()
}

/// Text of a string or of text blocks, which are joined by line breaks.
fn text_of(content: Value, name: &str) -> ApiResult<String> {
    let texts = blocks(content, name)?.into_iter().map(|(mut block, at)| block.text(&at));
    Ok(texts.collect::<ApiResult<Vec<_>>>()?.join("\n"))
}

impl Block {
    /// Moves a string out of the block.
    fn string(&mut self, field: &str, at: &str) -> ApiResult<String> {
        match self.fields.remove(field) {
            Some(Value::String(text)) => Ok(text),
            other => {
                let got = other.as_ref().map_or("nothing", kind_of);
                Err(ApiError::field(&format!("{at}.{field}"), "a string", got))
            }
        }
    }

    /// Text of a text block; other kinds are refused with what they need.
    fn text(&mut self, at: &str) -> ApiResult<String> {
        let needs = match self.kind.as_str() {
            "text" => return self.string("text", at),
            "image" => "which needs a model that sees",
            "document" => "which needs a model that reads documents: send its text",
            "tool_use" | "thinking" | "redacted_thinking" => "which is a part of the assistant's",
            "tool_result" => "which is a part of the user's",
            _ => "which is not supported",
        };
        let got: String = self.kind.chars().take(80).collect();
        Err(ApiError::field(&format!("{at}.type"), "`text`", format!("`{got}`, {needs}")))
    }

    /// Message with the result of a tool.
    fn tool_result(mut self, at: &str, names: &HashMap<String, String>) -> ApiResult<Value> {
        let id = self.string("tool_use_id", at)?;
        let mut text = match self.fields.remove("content") {
            None | Some(Value::Null) => String::new(),
            Some(content) => text_of(content, &format!("{at}.content"))?,
        };
        match self.fields.get("is_error") {
            None | Some(Value::Null | Value::Bool(false)) => {}
            Some(Value::Bool(true)) if text.starts_with(ERROR) => {}
            Some(Value::Bool(true)) => text.insert_str(0, ERROR),
            Some(other) => {
                let name = format!("{at}.is_error");
                return Err(ApiError::field(&name, "a boolean", kind_of(other)));
            }
        }
        let mut message = message("tool", text);
        message["tool_call_id"] = id.as_str().into();
        if let Some(name) = names.get(&id) {
            message["name"] = name.as_str().into();
        }
        Ok(message)
    }
}
