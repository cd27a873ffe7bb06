//! Each family and each conversation: what the family writes is parsed back, at once and while it comes.

use serde_json::{Value, json};

use super::writers::{Answer, WRITERS, Writer};
use super::{parse, parser};
use crate::chat::ChatMessage;

/// Conversations.
pub(super) fn answers() -> Vec<Answer> {
    let answer =
        |name, calls: Vec<(&'static str, Value)>| Answer { name, calls, ..Answer::default() };
    let weather = |arguments: Value| vec![("get_weather", arguments)];
    vec![
        Answer { content: "Hello *there* {x}.\n\nBye [1] <b>!", ..answer("content", vec![]) },
        Answer { reasoning: "I think.\n\nA lot.", ..answer("reasoning", vec![]) },
        Answer { reasoning: "I think.", content: "So it is.", ..answer("both", vec![]) },
        answer("one call", weather(json!({"city": "Paris"}))),
        Answer { content: "I look.", ..answer("content, call", weather(json!({"city": "Paris"}))) },
        Answer { reasoning: "Hm.", ..answer("reasoning, call", weather(json!({"city": "Paris"}))) },
        answer(
            "two calls",
            vec![("get_weather", json!({"city": "Paris"})), ("set-alarm", json!({}))],
        ),
        answer(
            "nested",
            weather(
                json!({"options": {"a": [1, {"b": []}], "c": {}}, "list": [[1], [2, "x"], {}]}),
            ),
        ),
        answer(
            "strings",
            weather(json!({
                "city": "\"P\" 'q' C:\\path\\new\n\ttwo\nlines",
                "code": "{\"code\":\"if (x) { y }\"} </tool_call> ]} <function=f>",
            })),
        ),
        answer("empty arguments", vec![("set-alarm", json!({}))]),
        Answer {
            content: "Größe 日本 🎉",
            ..answer("unicode", weather(json!({"city": "日本 🎉 é"})))
        },
        answer(
            "scalars",
            weather(
                json!({"days": -3, "scale": 1.5e-7, "is_hot": true, "none": null, "maybe": null}),
            ),
        ),
    ]
}

/// Whether a family can write an answer.
pub(super) fn can_write(writer: &Writer, answer: &Answer) -> bool {
    let is_mixed = !answer.content.is_empty() && !answer.calls.is_empty();
    let has_reasoning = writer.name != "Functionary 3.2";
    (writer.can_mix || !is_mixed) && (has_reasoning || answer.reasoning.is_empty())
}

#[track_caller]
fn check(writer: &Writer, answer: &Answer, got: &ChatMessage, text: &str) {
    let place = format!("{}, {}: {text:?}", writer.name, answer.name);
    assert_eq!(got.content, answer.content, "{place}");
    assert_eq!(got.reasoning, answer.reasoning, "{place}");
    let names: Vec<&str> = got.tool_calls.iter().map(|call| call.name.as_str()).collect();
    let expected: Vec<&str> = answer.calls.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, expected, "{place}");
    for (call, (_, arguments)) in got.tool_calls.iter().zip(&answer.calls) {
        let parsed: Value = serde_json::from_str(&call.arguments)
            .unwrap_or_else(|error| panic!("{place}: {error}: {}", call.arguments));
        assert_eq!(&parsed, arguments, "{place}");
    }
}

#[test]
fn what_a_family_writes_is_parsed_back() {
    for writer in WRITERS {
        for answer in answers().iter().filter(|answer| can_write(writer, answer)) {
            let text = (writer.write)(answer);
            check(writer, answer, &parse(writer.words, &text), &text);
        }
    }
}

#[test]
fn nothing_that_was_sent_is_taken_back_and_no_marker_leaks() {
    for writer in WRITERS {
        for answer in answers().iter().filter(|answer| can_write(writer, answer)) {
            let text = (writer.write)(answer);
            let whole = parse(writer.words, &text);
            for end in (0..=text.len()).filter(|&end| text.is_char_boundary(end)) {
                let events = parser(writer.words).push(&text[..end]);
                let part: ChatMessage = events.into_iter().collect();
                let place = format!("{}, {}: {:?}", writer.name, answer.name, &text[..end]);
                assert!(whole.content.starts_with(&part.content), "{place}: {part:?}");
                assert!(whole.reasoning.starts_with(&part.reasoning), "{place}: {part:?}");
                assert!(part.tool_calls.len() <= whole.tool_calls.len(), "{place}: {part:?}");
                for (part, whole) in part.tool_calls.iter().zip(&whole.tool_calls) {
                    assert_eq!((&part.name, &part.id), (&whole.name, &whole.id), "{place}");
                    assert!(whole.arguments.starts_with(&part.arguments), "{place}: {part:?}");
                }
            }
        }
    }
}

#[test]
fn identifiers_that_models_write_are_kept() {
    let id = |words, text| parse(words, text).tool_calls.remove(0).id;
    let kimi = "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:3<|tool_call_argument_begin|>{}<|tool_call_end|>";
    assert_eq!(id("<|tool_calls_section_begin|>", kimi).as_deref(), Some("functions.f:3"));
    let mistral = "[TOOL_CALLS]f[CALL_ID]a1b2[ARGS]{}";
    assert_eq!(id("[TOOL_CALLS] [CALL_ID]", mistral).as_deref(), Some("a1b2"));
    let command = "<|START_ACTION|>[{\"tool_call_id\": \"7\", \"tool_name\": \"f\", \"parameters\": {}}]<|END_ACTION|>";
    assert_eq!(id("<|START_ACTION|>", command).as_deref(), Some("7"));
}

#[test]
fn values_of_elements_have_the_types_of_the_schema() {
    let call = |value: &str, key: &str| {
        let text = format!(
            "<tool_call>\n<function=get_weather>\n<parameter={key}>\n{value}\n</parameter>\n</function>\n</tool_call>"
        );
        let arguments = parse(super::QWEN_CODER, &text).tool_calls.remove(0).arguments;
        serde_json::from_str::<Value>(&arguments).unwrap()[key].clone()
    };
    assert_eq!(call("12", "city"), json!("12"));
    assert_eq!(call("true", "city"), json!("true"));
    assert_eq!(call("12", "days"), json!(12));
    assert_eq!(call("twelve", "days"), json!("twelve"));
    assert_eq!(call("True", "is_hot"), json!(true));
    assert_eq!(call("{'a': [1, None]}", "options"), json!({"a": [1, null]}));
    assert_eq!((call("null", "maybe"), call("None", "maybe")), (json!(null), json!(null)));
    assert_eq!(call("12", "maybe"), json!("12"));
    // Without a schema, JSON is JSON.
    assert_eq!(call("12", "unknown"), json!(12));
    assert_eq!(call("a 12", "unknown"), json!("a 12"));
    assert_eq!(call("\n two\nlines \n", "city"), json!("\n two\nlines \n"));
}
