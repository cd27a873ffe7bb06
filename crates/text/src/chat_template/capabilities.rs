//! Capabilities of a template, found by rendering small conversations, and fitting messages to them.
//!
//! The adaptations are llama.cpp's (`common/chat.cpp`, `workaround`, and `common/jinja/caps.cpp`).
//! llama.cpp watches which values a template reads; here, words of the probe are looked for in the
//! output.

use serde_json::{Value, json};

use crate::conversation::Conversation;

/// Message forms that a template supports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChatTemplateCapabilities {
    /// Messages of the role `system` show up in the prompt.
    pub supports_system_role: bool,
    /// Messages of the role `developer` are something of their own.
    pub supports_developer_role: bool,
    /// The definitions of tools show up in the prompt.
    pub supports_tools: bool,
    /// The tool calls of assistant messages show up in the prompt.
    pub supports_tool_calls: bool,
    /// The arguments of tool calls must be objects; otherwise they are strings of JSON, as clients
    /// send them.
    pub needs_object_arguments: bool,
    /// Content in parts is printed as text.
    pub supports_parts: bool,
    /// Content must be in parts: a string is not printed.
    pub needs_parts: bool,
    /// `reasoning_content` of an assistant message that calls a tool shows up in the prompt.
    pub supports_reasoning: bool,
}

const SYSTEM: &str = "SystemProbe";
const USER: &str = "UserProbe";
const TOOL: &str = "tool_probe";
const CALL: &str = "call_probe";
const KEY: &str = "key_probe";
const ARGUMENT: &str = "ArgumentProbe";
const REASONING: &str = "ReasoningProbe";

impl ChatTemplateCapabilities {
    /// Renders the probes with `render`, which fits no messages. `knows_word`: a word is in the template's source.
    pub(super) fn probe(
        render: impl Fn(&Conversation) -> String,
        knows_word: impl Fn(&str) -> bool,
    ) -> Self {
        let render = |messages: Value, tools: Option<Value>| {
            let conversation = Conversation {
                messages: messages.as_array().cloned().unwrap_or_default(),
                tools,
                add_generation_prompt: true,
                now: Some(0),
                ..Conversation::default()
            };
            render(&conversation)
        };
        let string = render(json!([{"role": "user", "content": USER}]), None);
        let parts = render(json!([{"role": "user", "content": parts(USER)}]), None);
        let supports_parts = shows(&parts, USER);
        let needs_parts = !string.contains(USER) && supports_parts;
        let content = |text: &str| if needs_parts { parts_of(text) } else { json!(text) };

        let started_by = |role: &str| {
            let first = json!({"role": role, "content": content(SYSTEM)});
            render(json!([first, {"role": "user", "content": content(USER)}]), None)
        };
        let supports_developer_role =
            knows_word("developer") && shows(&started_by("developer"), SYSTEM);

        let user = json!({"role": "user", "content": content(USER)});
        let with_tools = render(json!([user]), Some(tools()));
        let calls = |arguments: Value, content: Value| {
            let call = json!({
                "id": "call00001",
                "type": "function",
                "function": {"name": CALL, "arguments": arguments},
            });
            let messages = json!([
                user,
                {
                    "role": "assistant",
                    "content": content,
                    "reasoning_content": REASONING,
                    "tool_calls": [call],
                },
                {"role": "tool", "tool_call_id": "call00001", "name": CALL, "content": "1"},
            ]);
            render(messages, Some(tools()))
        };
        let object = json!({KEY: ARGUMENT});
        let as_string = calls(json!(object.to_string()), content(""));
        let as_object = calls(object, content(""));
        // A printed dictionary has Python's notation, which no model was trained on.
        let object_works =
            as_object.contains(ARGUMENT) && !as_object.contains(&format!("{{'{KEY}'"));
        // A string that is encoded as JSON again has its quotes escaped.
        let string_works =
            as_string.contains(ARGUMENT) && !as_string.contains(&format!("\\\"{KEY}"));
        let called = if object_works { &as_object } else { &as_string };
        Self {
            supports_system_role: shows(&started_by("system"), SYSTEM),
            supports_developer_role,
            supports_tools: with_tools.contains(TOOL),
            supports_tool_calls: called.contains(CALL),
            needs_object_arguments: object_works && !string_works,
            supports_parts,
            needs_parts,
            supports_reasoning: called.contains(REASONING),
        }
    }

    /// `conversation` with messages that the template can take; see [`ChatTemplate::render`](crate::ChatTemplate::render).
    pub(super) fn fit(&self, conversation: &Conversation) -> Conversation {
        let mut fitted = conversation.clone();
        for message in &mut fitted.messages {
            if !self.supports_developer_role && message["role"] == "developer" {
                message["role"] = json!("system");
            }
            if self.supports_tool_calls {
                fit_tool_calls(message, self.needs_object_arguments);
            }
            if let Some(content) = message.get_mut("content") {
                self.fit_content(content);
            }
        }
        if !self.supports_system_role {
            merge_system(&mut fitted.messages);
        }
        fitted
    }

    fn fit_content(&self, content: &mut Value) {
        match content {
            Value::String(text) if self.needs_parts => *content = parts_of(text),
            Value::Array(list) if !self.supports_parts => *content = json!(joined(list)),
            _ => {}
        }
    }
}

/// Whether `prompt` has the text `word` of a message, and not as part of a printed list.
fn shows(prompt: &str, word: &str) -> bool {
    prompt.contains(word) && !prompt.contains("'text'") && !prompt.contains("\"text\"")
}

fn parts(text: &str) -> Value {
    parts_of(text)
}

/// Content of one part.
fn parts_of(text: &str) -> Value {
    json!([{"type": "text", "text": text}])
}

/// The texts of content parts, each on lines of its own; other kinds of parts are left out.
fn joined(parts: &[Value]) -> String {
    let texts: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
    texts.join("\n")
}

fn tools() -> Value {
    json!([{
        "type": "function",
        "function": {
            "name": TOOL,
            "description": "A tool",
            "parameters": {
                "type": "object",
                "properties": {KEY: {"type": "string", "description": "An argument"}},
                "required": [KEY],
            },
        },
    }])
}

fn fit_tool_calls(message: &mut Value, object_arguments: bool) {
    let Some(calls) = message.get_mut("tool_calls") else { return };
    if object_arguments {
        for call in calls.as_array_mut().into_iter().flatten() {
            let Some(arguments) = call.pointer_mut("/function/arguments") else { continue };
            // Invalid JSON stays a string: the template may still print it.
            let parsed = arguments.as_str().and_then(|text| serde_json::from_str(text).ok());
            if let Some(object @ Value::Object(_)) = parsed {
                *arguments = object;
            }
        }
    }
    if message.get("content").is_none_or(Value::is_null) {
        message["content"] = json!("");
    }
}

/// Prepends a first system message to the content of the next message.
fn merge_system(messages: &mut Vec<Value>) {
    if messages.first().is_none_or(|first| first["role"] != "system") {
        return;
    }
    let system = messages.remove(0);
    let Some(next) = messages.first_mut() else { return };
    let text = match &system["content"] {
        Value::Array(list) => joined(list),
        content => content.as_str().unwrap_or_default().to_owned(),
    };
    match next.get_mut("content") {
        Some(Value::Array(list)) => {
            list.insert(0, json!({"type": "text", "text": format!("{text}\n")}))
        }
        Some(content @ Value::String(_)) => {
            *content = json!(format!("{text}\n{}", content.as_str().unwrap_or_default()));
        }
        _ => next["content"] = json!(text),
    }
}
