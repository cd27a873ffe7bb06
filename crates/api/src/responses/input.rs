//! Items, tools and choices of OpenAI's Responses in the form of chat completions.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

use crate::json::kind_of;
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

/// Functions of a request, and the parts of their names.
#[derive(Debug, Default)]
pub(super) struct Tools {
    /// Definitions in the form of chat completions.
    pub(super) list: Vec<Value>,
    /// Namespace and own name of each function of a namespace, by the joined name.
    pub(super) namespaces: HashMap<String, [String; 2]>,
}

/// Messages of the field `input`.
///
/// # Errors
/// 400 with the item, what was expected and what was found.
pub(super) fn messages(input: Option<&Value>) -> ApiResult<Vec<Value>> {
    match input {
        Some(Value::String(text)) => Ok(vec![json!({"role": "user", "content": text})]),
        Some(Value::Array(items)) => {
            let mut messages = Messages::default();
            for (index, item) in items.iter().enumerate() {
                messages.item(item, &format!("input[{index}]"))?;
            }
            Ok(messages.list.into_iter().map(Value::Object).collect())
        }
        other => {
            let got = other.map_or("nothing", kind_of);
            Err(ApiError::field("input", "a string or a list of items", got))
        }
    }
}

/// Messages of the items so far.
#[derive(Debug, Default)]
struct Messages {
    list: Vec<Map<String, Value>>,
    /// Reasoning before the next part of the assistant.
    reasoning: String,
    /// Names of called tools by the identifiers of the calls.
    names: HashMap<String, String>,
}

impl Messages {
    fn item(&mut self, item: &Value, name: &str) -> ApiResult<()> {
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
            Some(kind) if HOSTED.contains(&kind) => Ok(()),
            Some(kind) => {
                let expected = "`message`, `reasoning`, `function_call` or `function_call_output`";
                Err(ApiError::field(&format!("{name}.type"), expected, quoted(kind)))
            }
        }
    }

    fn message(&mut self, fields: &Map<String, Value>, name: &str) -> ApiResult<()> {
        let role = string(fields, "role", name)?;
        if !["user", "assistant", "system", "developer"].contains(&role) {
            let expected = "`user`, `assistant`, `system` or `developer`";
            return Err(ApiError::field(&format!("{name}.role"), expected, quoted(role)));
        }
        let content = text(fields.get("content"), &format!("{name}.content"))?;
        let mut message = Map::new();
        message.insert("role".to_owned(), role.into());
        message.insert("content".to_owned(), content.into());
        // Reasoning that no part of the assistant follows belongs to nothing.
        let reasoning = std::mem::take(&mut self.reasoning);
        if role == "assistant" && !reasoning.is_empty() {
            message.insert("reasoning_content".to_owned(), reasoning.into());
        }
        self.list.push(message);
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
    fn call(&mut self, fields: &Map<String, Value>, input: &str, name: &str) -> ApiResult<()> {
        let (id, tool) = (string(fields, "call_id", name)?, string(fields, "name", name)?);
        let namespace = fields.get("namespace").and_then(Value::as_str);
        let tool = namespace.map_or_else(|| tool.to_owned(), |namespace| joined(namespace, tool));
        let input_text = string(fields, input, name)?;
        let arguments = match input {
            // The text of a custom tool, for templates that know functions alone.
            "input" => json!({ "input": input_text }).to_string(),
            _ => input_text.to_owned(),
        };
        self.names.insert(id.to_owned(), tool.clone());
        let call = json!({
            "id": id, "type": "function", "function": {"name": tool, "arguments": arguments},
        });
        if self.list.last().is_none_or(|last| last["role"] != "assistant") {
            let message = [("role", "assistant"), ("content", "")];
            let message = message.map(|(name, value)| (name.to_owned(), Value::from(value)));
            self.list.push(Map::from_iter(message));
        }
        let Some(message) = self.list.last_mut() else { return Ok(()) };
        let reasoning = std::mem::take(&mut self.reasoning);
        if !reasoning.is_empty() {
            let known = message.entry("reasoning_content").or_insert_with(|| "".into());
            let mut all = known.as_str().unwrap_or_default().to_owned();
            append(&mut all, &reasoning);
            *known = all.into();
        }
        let calls = message.entry("tool_calls").or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(calls) = calls {
            calls.push(call);
        }
        Ok(())
    }

    fn output(&mut self, fields: &Map<String, Value>, name: &str) -> ApiResult<()> {
        let id = string(fields, "call_id", name)?;
        let content = text(fields.get("output"), &format!("{name}.output"))?;
        let mut message = Map::new();
        for (name, value) in [("role", "tool"), ("tool_call_id", id), ("content", &content)] {
            message.insert(name.to_owned(), value.into());
        }
        if let Some(tool) = self.names.get(id) {
            message.insert("name".to_owned(), tool.as_str().into());
        }
        self.list.push(message);
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
fn quoted(text: &str) -> String {
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

/// Name of a function of a namespace. Codex names namespaces `mcp__server__`.
fn joined(namespace: &str, tool: &str) -> String {
    let separator = if namespace.ends_with("__") { "" } else { "__" };
    format!("{namespace}{separator}{tool}")
}

/// Functions of the field `tools`, those of namespaces included. Other types are left out: clients list tools of OpenAI's
/// servers with every request (codex 10635).
///
/// # Errors
/// 400 with the tool.
pub(super) fn tools(tools: &[Value]) -> ApiResult<Tools> {
    let mut found = Tools::default();
    for (index, tool) in tools.iter().enumerate() {
        let name = format!("tools[{index}]");
        match tool["type"].as_str() {
            Some("function") => found.list.push(function(tool, None, &name)?),
            Some("namespace") => {
                let namespace = own_name(tool, &name)?;
                let Some(inner) = tool["tools"].as_array() else {
                    let got = kind_of(&tool["tools"]);
                    return Err(ApiError::field(&format!("{name}.tools"), "a list of tools", got));
                };
                let functions = inner.iter().enumerate();
                for (i, tool) in functions.filter(|(_, tool)| tool["type"] == "function") {
                    let name = format!("{name}.tools[{i}]");
                    let own = own_name(tool, &name)?.to_owned();
                    found.list.push(function(tool, Some(namespace), &name)?);
                    let names = [namespace.to_owned(), own];
                    found.namespaces.insert(joined(namespace, &names[1]), names);
                }
            }
            Some(_) => {}
            None => {
                let got = kind_of(&tool["type"]);
                return Err(ApiError::field(&format!("{name}.type"), "a string", got));
            }
        }
    }
    Ok(found)
}

/// Name of a tool, which chat completions put into `function`.
fn own_name<'a>(tool: &'a Value, name: &str) -> ApiResult<&'a str> {
    let value = tool.get("function").unwrap_or(tool).get("name");
    value.and_then(Value::as_str).ok_or_else(|| {
        let got = value.map_or("nothing", kind_of);
        ApiError::field(&format!("{name}.name"), "a string", got)
    })
}

/// A function in the form of chat completions.
fn function(tool: &Value, namespace: Option<&str>, name: &str) -> ApiResult<Value> {
    let own = own_name(tool, name)?;
    let own = namespace.map_or_else(|| own.to_owned(), |namespace| joined(namespace, own));
    let definition = tool.get("function").unwrap_or(tool);
    let mut function = Map::from_iter([("name".to_owned(), Value::from(own))]);
    for field in ["description", "parameters", "strict"] {
        if let Some(value) = definition.get(field).filter(|value| !value.is_null()) {
            function.insert(field.to_owned(), value.clone());
        }
    }
    Ok(json!({ "type": "function", "function": function }))
}

/// The field `tool_choice` in the form of chat completions. Allowed tools are those that stay in `tools`.
///
/// # Errors
/// 400 for a choice of another tool than a function.
pub(super) fn tool_choice(choice: &Value, tools: &mut Vec<Value>) -> ApiResult<Value> {
    let Value::Object(fields) = choice else { return Ok(choice.clone()) };
    let name = |tool: &Value| {
        let own = tool["name"].as_str()?;
        let namespace = tool["namespace"].as_str();
        Some(namespace.map_or_else(|| own.to_owned(), |namespace| joined(namespace, own)))
    };
    match fields.get("type").and_then(Value::as_str) {
        Some("function") if fields.contains_key("function") => Ok(choice.clone()),
        Some("function") => Ok(json!({"type": "function", "name": name(choice)})),
        Some("allowed_tools") => {
            let allowed = choice["tools"].as_array().map_or(&[][..], Vec::as_slice);
            let allowed: HashSet<String> = allowed.iter().filter_map(name).collect();
            let is_allowed = |tool: &Value| {
                tool["function"]["name"].as_str().is_some_and(|name| allowed.contains(name))
            };
            tools.retain(is_allowed);
            if tools.is_empty() {
                let got = "other ones";
                return Err(ApiError::field("tool_choice.tools", "functions of `tools`", got));
            }
            Ok(choice["mode"].clone())
        }
        other => {
            let got = other.map_or_else(|| "nothing".to_owned(), quoted);
            Err(ApiError::field("tool_choice.type", "`function` or `allowed_tools`", got))
        }
    }
}
