//! Tools in the prompts of templates that have none, in the form of Hermes, which most models have seen.

use serde_json::{Value, json};
use stonechat_text::Conversation;

const BEFORE: &str = "You are a function calling AI model. You may call one or more functions to assist with the user query. \
Don't make assumptions about what values to plug into functions.\nHere are the available tools:\n<tools>\n";
const AFTER: &str = "\n</tools>\nFor each function call, return a JSON object with function name and arguments within \
<tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>";

/// Writes the tools into the system message, and calls and results as text.
pub(crate) fn write_tools(conversation: &mut Conversation) {
    for message in &mut conversation.messages {
        write_calls(message);
    }
    join_results(&mut conversation.messages);
    let Some(tools) = conversation.tools.take() else { return };
    let tools: Vec<String> = tools.as_array().into_iter().flatten().map(Value::to_string).collect();
    if tools.is_empty() {
        return;
    }
    let text = format!("{BEFORE}{}{AFTER}", tools.join("\n"));
    let first = conversation.messages.first_mut();
    let system =
        first.filter(|message| matches!(message["role"].as_str(), Some("system" | "developer")));
    match system {
        Some(system) => {
            let own = text_of(&system["content"]);
            system["content"] = format!("{own}\n\n{text}").trim_start().into();
        }
        None => conversation.messages.insert(0, json!({"role": "system", "content": text})),
    }
}

/// Text of a message's content.
fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let texts: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
            texts.join("\n")
        }
        _ => String::new(),
    }
}

/// Appends the calls of a message to its content.
fn write_calls(message: &mut Value) {
    let Some(calls) = message.get("tool_calls").and_then(Value::as_array) else { return };
    let mut text = text_of(&message["content"]);
    for call in calls {
        let function = call.get("function").unwrap_or(call);
        let arguments = match &function["arguments"] {
            Value::String(text) => {
                serde_json::from_str(text).unwrap_or_else(|_| Value::from(text.as_str()))
            }
            Value::Null => json!({}),
            object => object.clone(),
        };
        let call = json!({"name": function["name"], "arguments": arguments});
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&format!("<tool_call>\n{call}\n</tool_call>"));
    }
    if let Value::Object(fields) = message {
        fields.remove("tool_calls");
        fields.insert("content".to_owned(), text.into());
    }
}

/// Turns results of tools into messages of the user, neighbours into one: many templates want the roles to alternate.
fn join_results(messages: &mut Vec<Value>) {
    let mut joined: Vec<Value> = Vec::with_capacity(messages.len());
    let mut is_after_result = false;
    for message in messages.drain(..) {
        let is_result = matches!(message["role"].as_str(), Some("tool" | "function"));
        if !is_result {
            is_after_result = false;
            joined.push(message);
            continue;
        }
        let text = text_of(&message["content"]);
        let text = format!("<tool_response>\n{text}\n</tool_response>");
        match joined.last_mut().filter(|_| is_after_result) {
            Some(last) => {
                let before = text_of(&last["content"]);
                last["content"] = format!("{before}\n{text}").into();
            }
            None => joined.push(json!({"role": "user", "content": text})),
        }
        is_after_result = true;
    }
    *messages = joined;
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use stonechat_text::Conversation;

    use super::write_tools;

    #[test]
    fn tools_calls_and_results_become_text() {
        let call = |name: &str, arguments: &str| json!({"function": {"name": name, "arguments": arguments}});
        let mut conversation = Conversation {
            messages: vec![
                json!({"role": "system", "content": "Be brief."}),
                json!({"role": "user", "content": "Weather?"}),
                json!({"role": "assistant", "content": null, "tool_calls": [call("f", "{\"a\": 1}"), call("g", "")]}),
                json!({"role": "tool", "content": "sun"}),
                json!({"role": "tool", "content": [{"type": "text", "text": "rain"}]}),
            ],
            tools: Some(json!([{"type": "function", "function": {"name": "f"}}])),
            ..Conversation::default()
        };
        write_tools(&mut conversation);
        let contents: Vec<&str> = conversation
            .messages
            .iter()
            .map(|message| message["content"].as_str().unwrap())
            .collect();
        assert!(contents[0].starts_with("Be brief.\n\nYou are a function calling AI model."));
        assert!(contents[0].contains("<tools>\n{\"type\":\"function\""));
        assert_eq!(
            contents[2],
            "<tool_call>\n{\"name\":\"f\",\"arguments\":{\"a\":1}}\n</tool_call>\n\
             <tool_call>\n{\"name\":\"g\",\"arguments\":\"\"}\n</tool_call>"
        );
        assert_eq!(
            contents[3],
            "<tool_response>\nsun\n</tool_response>\n<tool_response>\nrain\n</tool_response>"
        );
        assert_eq!(conversation.messages[3]["role"], "user");
        assert_eq!((conversation.messages.len(), conversation.tools), (4, None));
    }

    #[test]
    fn a_conversation_without_tools_is_unchanged() {
        let messages = vec![json!({"role": "user", "content": "Hello"})];
        let mut conversation = Conversation { messages, ..Conversation::default() };
        let before = conversation.clone();
        write_tools(&mut conversation);
        assert_eq!(conversation, before);
    }
}
