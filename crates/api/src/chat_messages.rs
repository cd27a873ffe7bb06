//! Messages of a chat in the form that templates expect: a known role, content as one string.
//!
//! A message is free JSON, since a template may read any field. Other dialects make theirs by the functions at the end.

use serde_json::{Value, json};

use crate::json::kind_of;
use crate::{ApiError, ApiResult};

/// Start of a line that Claude Code puts into the system prompt. It differs in every request, so that no prefix of two
/// requests would be equal.
const BILLING_LINE: &str = "x-anthropic-billing-header";

/// Roles of messages.
const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];

/// A message as templates expect it: a known role, content as one string.
pub(crate) fn checked(index: usize, message: Value) -> ApiResult<Value> {
    let name = format!("messages[{index}]");
    let Value::Object(mut fields) = message else {
        return Err(ApiError::field(&name, "an object", kind_of(&message)));
    };
    let role = match fields.get("role") {
        Some(Value::String(role)) if !role.is_empty() => role.clone(),
        other => {
            let got = other.map_or("nothing", kind_of);
            return Err(ApiError::field(&format!("{name}.role"), "a string", got));
        }
    };
    if !ROLES.contains(&role.as_str()) {
        let expected = format!("`{}`", ROLES.join("`, `"));
        return Err(ApiError::field(&format!("{name}.role"), &expected, format!("`{role}`")));
    }
    let role = if role == "developer" { "system".to_owned() } else { role };
    let content = text_of(fields.get("content"), &format!("{name}.content"))?;
    let has_calls =
        fields.get("tool_calls").and_then(Value::as_array).is_some_and(|c| !c.is_empty());
    if content.is_none() && role != "assistant" && !fields.contains_key("content") {
        return Err(ApiError::field(&format!("{name}.content"), "a text", "nothing"));
    }
    if content.is_none() && role == "assistant" && !has_calls && !fields.contains_key("content") {
        let expected = "a text, or `tool_calls` beside it";
        return Err(ApiError::field(&format!("{name}.content"), expected, "nothing"));
    }
    let mut content = content.unwrap_or_default();
    if role == "system" {
        content = without_billing_line(content);
    }
    // vLLM and `OpenRouter` name it so; templates read DeepSeek's name.
    if let Some(reasoning) = fields.remove("reasoning").filter(Value::is_string) {
        fields.entry("reasoning_content").or_insert(reasoning);
    }
    fields.insert("role".to_owned(), role.into());
    fields.insert("content".to_owned(), content.into());
    Ok(Value::Object(fields))
}

/// Text of a message; parts of type `text` are joined by line breaks. `None` for null or no content.
fn text_of(content: Option<&Value>, name: &str) -> ApiResult<Option<String>> {
    match content {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Array(parts)) => {
            let texts =
                parts.iter().enumerate().map(|(i, part)| text_part(part, &format!("{name}[{i}]")));
            let texts: Vec<&str> = texts.collect::<ApiResult<_>>()?;
            Ok(Some(texts.join("\n")))
        }
        Some(other) => Err(ApiError::field(name, "a string or a list of parts", kind_of(other))),
    }
}

fn text_part<'a>(part: &'a Value, name: &str) -> ApiResult<&'a str> {
    match (part["type"].as_str(), &part["text"]) {
        (Some("text" | "input_text" | "output_text"), Value::String(text)) => Ok(text),
        (Some("text" | "input_text" | "output_text"), other) => {
            Err(ApiError::field(&format!("{name}.text"), "a string", kind_of(other)))
        }
        (Some(other), _) => {
            let got = format!(
                "`{other}`, which needs a model that sees or hears; recordings go to `/v1/audio/transcriptions`"
            );
            Err(ApiError::field(&format!("{name}.type"), "`text`", got))
        }
        (None, _) => {
            Err(ApiError::field(&format!("{name}.type"), "`text`", kind_of(&part["type"])))
        }
    }
}

/// Cuts the lines of Claude Code's billing header.
fn without_billing_line(text: String) -> String {
    if !text.contains(BILLING_LINE) {
        return text;
    }
    let is_kept = |line: &&str| !line.trim_start().starts_with(BILLING_LINE);
    text.split_inclusive('\n').filter(is_kept).collect()
}

/// Message with a text.
pub(crate) fn message(role: &str, text: impl Into<Value>) -> Value {
    json!({"role": role, "content": text.into()})
}

/// Call of a tool, an item of `tool_calls`, with its arguments as JSON text.
pub(crate) fn tool_call(id: &str, tool: &str, arguments: &str) -> Value {
    let function = json!({"name": tool, "arguments": arguments});
    json!({"id": id, "type": "function", "function": function})
}

/// Definition of a tool, an item of `tools`.
pub(crate) fn tool(function: Value) -> Value {
    json!({"type": "function", "function": function})
}

/// `tool_choice` of one tool.
pub(crate) fn chosen_tool(name: &str) -> Value {
    tool(json!({"name": name}))
}

/// `response_format` of a text that conforms to a JSON schema.
pub(crate) fn schema_format(schema: Value) -> Value {
    json!({"type": "json_schema", "json_schema": {"schema": schema}})
}

/// `response_format` of a text that is some JSON object.
pub(crate) fn object_format() -> Value {
    json!({"type": "json_object"})
}
