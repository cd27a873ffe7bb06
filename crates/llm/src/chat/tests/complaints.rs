//! Complaints of users of other servers.

use serde_json::{Value, json};

use super::{HERMES, LLAMA, parse, parser};
use crate::chat::ChatEvent;

fn arguments(words: &str, text: &str) -> Value {
    let got = parse(words, text);
    assert_eq!((got.content.as_str(), got.tool_calls.len()), ("", 1), "{text:?}");
    serde_json::from_str(&got.tool_calls[0].arguments).unwrap()
}

/// ollama 16937.
#[test]
fn braces_in_a_string_end_no_call() {
    let text = "<tool_call>\n{\"name\": \"run\", \"arguments\": {\"code\":\"if (x) { y }\"}}\n</tool_call>";
    assert_eq!(arguments(HERMES, text), json!({"code": "if (x) { y }"}));
}

/// ollama 15254.
#[test]
fn quotes_and_paths_are_kept() {
    let given = json!({"path": "C:\\path\\new", "text": "say \"hi\""});
    let text = format!("<tool_call>\n{{\"name\": \"run\", \"arguments\": {given}}}\n</tool_call>");
    assert_eq!(arguments(HERMES, &text), given);
    let unescaped =
        "<tool_call>{\"name\": \"run\", \"arguments\": {\"path\": \"C:\\path\"}}</tool_call>";
    assert_eq!(arguments(HERMES, unescaped), json!({"path": "C:\\path"}));
}

/// `LocalAI` 10059.
#[test]
fn a_name_is_never_json_or_prose() {
    for name in ["{\\\"name\\\": \\\"f\\\"}", "I will call f", "", "f(x)", "a\\nb"] {
        let text =
            format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {{}}}}\n</tool_call>");
        let got = parse(HERMES, &text);
        assert_eq!((got.content.as_str(), got.tool_calls.len()), (text.as_str(), 0));
    }
    let got = parse(LLAMA, "{\"name\": \"nobody\", \"parameters\": {}}");
    assert_eq!(got.tool_calls.len(), 0);
}

/// `LocalAI` 10057.
#[test]
fn no_text_of_a_call_is_content() {
    let text = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"b\"}}\n</tool_call>\n";
    let mut parser = parser(HERMES);
    let mut events = Vec::new();
    for c in text.chars() {
        events.extend(parser.push(&c.to_string()));
    }
    events.extend(parser.finish(true));
    assert!(!events.iter().any(|event| matches!(event, ChatEvent::Content(_))), "{events:?}");
}

/// llama.cpp 22072, ogx 4430, oh-my-pi 1970.
#[test]
fn parallel_calls_have_their_own_indices() {
    let call = |n: u32| {
        format!("<tool_call>\n{{\"name\": \"f\", \"arguments\": {{\"n\": {n}}}}}\n</tool_call>")
    };
    let text = (0..5).map(call).collect::<Vec<_>>().join("\n");
    let mut parser = parser(HERMES);
    let mut events = parser.push(&text);
    events.extend(parser.finish(true));
    let (mut names, mut fragments) = (Vec::new(), vec![String::new(); 5]);
    for event in events {
        match event {
            ChatEvent::ToolCall { index, name, .. } => names.push((index, name)),
            ChatEvent::Arguments { index, fragment } => {
                assert_eq!(index + 1, names.len(), "fragments follow their call");
                fragments[index].push_str(&fragment);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(names, (0..5).map(|index| (index, "f".to_owned())).collect::<Vec<_>>());
    for (n, fragment) in fragments.iter().enumerate() {
        assert_eq!(serde_json::from_str::<Value>(fragment).unwrap(), json!({"n": n}));
    }
}

/// ollama 17250.
#[test]
fn a_missing_end_tag_loses_no_call() {
    let text = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}";
    assert_eq!(arguments(HERMES, text), json!({"a": 1}));
}

/// ollama 17883.
#[test]
fn text_that_cannot_be_parsed_is_not_lost() {
    let text = "<tool_call>\nthe weather in Paris, please";
    assert_eq!(parse(HERMES, text).content, text);
}

#[test]
fn arguments_are_streamed_before_the_call_ends() {
    let mut parser = parser(HERMES);
    let events = parser.push("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"some te");
    let name = ChatEvent::ToolCall { index: 0, id: None, name: "f".to_owned() };
    let fragment = ChatEvent::Arguments { index: 0, fragment: "{\"a\": \"some te".to_owned() };
    assert_eq!(events, [name, fragment]);
}
