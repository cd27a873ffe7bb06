//! Bodies and answers of Anthropic's messages.

use serde_json::{Map, Value, json};
use stonechat::llm::chat::{ChatEvent, ChatMessage};
use stonechat::{Completion, Finish};

use super::answer::MessageObjects;
use super::{MessagesFields, input};
use crate::chat_answer::{ChatAnswer, ChatDialect, ChatStep, ChatWriter};
use crate::generation::RequestStats;
use crate::text::Frame;

#[track_caller]
fn adapted(body: Value) -> Value {
    let Value::Object(mut body) = body else { panic!("an object") };
    input::adapt(&mut body).unwrap();
    Value::Object(body)
}

fn adapted_messages(messages: Value) -> Value {
    adapted(json!({"messages": messages}))["messages"].take()
}

#[track_caller]
fn refused(body: Value, expected: &str) {
    let Value::Object(mut body) = body else { panic!("an object") };
    let error = MessagesFields::adapt(&mut body).unwrap_err();
    assert_eq!((error.status(), error.message()), (400, expected));
}

#[test]
fn a_conversation_with_tools_becomes_a_chat() {
    let got = adapted_messages(json!([
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "t1", "name": "read", "input": {"path": "C:\\a \"b\""}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "7"}]},
            {"type": "tool_result", "tool_use_id": "t2", "content": "no file", "is_error": true},
            {"type": "text", "text": "Go on."},
        ]},
    ]));
    let arguments = r#"{"path":"C:\\a \"b\""}"#;
    let expected = json!([
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "I look.", "reasoning_content": "hm", "tool_calls": [
            {"id": "t1", "type": "function", "function": {"name": "read", "arguments": arguments}},
        ]},
        {"role": "tool", "tool_call_id": "t1", "content": "7", "name": "read"},
        {"role": "tool", "tool_call_id": "t2", "content": "Error: no file"},
        {"role": "user", "content": "Go on."},
    ]);
    assert_eq!(got, expected);
}

#[test]
fn fields_of_claude_code_have_the_meaning_of_a_chat() {
    let body = adapted(json!({
        "model": "claude", "max_tokens": 9, "stream": true, "top_k": 4, "n": 7,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: 1"},
            {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
        ],
        "messages": [{"role": "user", "content": "Hi"}],
        "stop_sequences": ["END"],
        "tools": [
            {"name": "f", "description": "d", "input_schema": {"type": "object"}},
            {"type": "web_search_20250305", "name": "web_search"},
        ],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {}}},
        "metadata": {"user_id": "u"}, "service_tier": "auto", "context_management": {},
    }));
    let function = json!({"name": "f", "description": "d", "parameters": {"type": "object"}});
    let expected = json!({
        "model": "claude", "max_tokens": 9, "stream": true, "top_k": 4,
        "messages": [
            {"role": "system", "content": "x-anthropic-billing-header: 1\nBe brief."},
            {"role": "user", "content": "Hi"},
        ],
        "stop": ["END"],
        "tools": [{"type": "function", "function": function}],
        "tool_choice": "required",
        "parallel_tool_calls": false,
        "enable_thinking": true,
        "reasoning_budget_tokens": 1024,
        "reasoning_effort": "low",
        "response_format": {"type": "json_schema", "json_schema": {"schema": {}}},
    });
    assert_eq!(body, expected);
    for (choice, expected) in [
        (json!({"type": "auto"}), json!("auto")),
        (json!({"type": "none"}), json!("none")),
        (
            json!({"type": "tool", "name": "f"}),
            json!({"type": "function", "function": {"name": "f"}}),
        ),
    ] {
        let body = json!({"messages": [{"role": "user", "content": ""}], "tool_choice": choice});
        assert_eq!(adapted(body)["tool_choice"], expected);
    }
}

#[test]
fn invalid_fields_are_named() {
    let body = |fields: Value| {
        let mut body = json!({"max_tokens": 1, "messages": [{"role": "user", "content": "a"}]});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        body
    };
    let content = |block: Value| body(json!({"messages": [{"role": "user", "content": [block]}]}));
    refused(json!({}), "`max_tokens`: expected a whole number, got nothing");
    refused(json!({"max_tokens": 1}), "`messages`: expected a list of messages, got nothing");
    for (body, expected) in [
        (body(json!({"messages": []})), "`messages`: expected at least one message, got none"),
        (body(json!({"messages": [7]})), "`messages[0]`: expected an object, got a number"),
        (
            body(json!({"messages": [{"role": "tool"}]})),
            "`messages[0].role`: expected `user`, `assistant` or `system`, got `tool`",
        ),
        (
            content(json!({"type": "image"})),
            "`messages[0].content[0].type`: expected `text`, got `image`, which needs a model that sees",
        ),
        (
            content(json!({"type": "document"})),
            "`messages[0].content[0].type`: expected `text`, got `document`, which needs a model that reads documents: send its text",
        ),
        (
            content(json!({"type": "tool_use"})),
            "`messages[0].content[0].type`: expected `text`, got `tool_use`, which is a part of the assistant's",
        ),
        (
            content(json!({"type": "tool_result"})),
            "`messages[0].content[0].tool_use_id`: expected a string, got nothing",
        ),
        (content(json!({})), "`messages[0].content[0].type`: expected a string, got nothing"),
        (
            body(json!({"tools": [{"name": "f"}]})),
            "`tools[0].input_schema`: expected a JSON schema, got none",
        ),
        (
            body(json!({"tool_choice": {"type": "some"}})),
            "`tool_choice.type`: expected `auto`, `any`, `tool` or `none`, got `some`",
        ),
        (
            body(json!({"thinking": {"type": "enabled", "budget_tokens": -1}})),
            "`thinking.budget_tokens`: expected a positive number, got -1",
        ),
        (
            body(json!({"stop_sequences": "a"})),
            "`stop_sequences`: expected a list of strings, got a string",
        ),
    ] {
        refused(body, expected);
    }
}

fn answer(events: Vec<ChatEvent>, finish: Finish) -> ChatAnswer {
    let mut completion = Completion::default();
    (completion.finish, completion.tokens) = (finish, vec![1, 2, 3]);
    (completion.prompt_tokens, completion.cached_tokens) = (9, 4);
    completion.stop = (finish == Finish::StopString).then(|| "END".to_owned());
    let message = events.into_iter().collect::<ChatMessage>();
    ChatAnswer { message, completion, reasoning_tokens: 0 }
}

fn writer() -> MessageObjects {
    MessageObjects::new("m", vec!["END".to_owned()])
}

/// Data of the frames, whose events have the names of their types.
#[track_caller]
fn data(frames: Vec<Frame>) -> Vec<Value> {
    let data = |frame: Frame| {
        let data: Value = serde_json::from_str(&frame.data).unwrap();
        assert_eq!(data["type"].as_str(), frame.event);
        data
    };
    frames.into_iter().map(data).collect()
}

/// Reasoning, content and two calls, as the parser gives them.
fn parts() -> Vec<ChatEvent> {
    let call = |index, id: &str| ChatEvent::ToolCall {
        index,
        id: Some(id.to_owned()),
        name: "f".to_owned(),
    };
    let fragment =
        |index, fragment: &str| ChatEvent::Arguments { index, fragment: fragment.to_owned() };
    vec![
        ChatEvent::Reasoning("h".to_owned()),
        ChatEvent::Reasoning("m".to_owned()),
        ChatEvent::Content("a".to_owned()),
        call(0, "toolu_1"),
        fragment(0, "{\"x\":"),
        fragment(0, "1}"),
        call(1, "toolu_2"),
        fragment(1, "{}"),
        ChatEvent::Content("b".to_owned()),
    ]
}

#[test]
fn a_stream_has_contiguous_blocks() {
    let mut writer = writer();
    let mut stats = RequestStats::new(9, 1);
    stats.cached_tokens = 4;
    let start = data(writer.start(&stats));
    assert_eq!(start[0]["message"]["usage"]["input_tokens"], 5);
    assert_eq!(start[0]["message"]["usage"]["cache_read_input_tokens"], 4);
    assert_eq!(start[0]["message"]["content"], json!([]));
    assert!(start[0]["message"]["id"].as_str().unwrap().starts_with("msg_"));
    assert_eq!(start[1], json!({"type": "ping"}));
    // Two steps cut a part.
    let (mut frames, mut events) = (Vec::new(), parts());
    let rest = events.split_off(5);
    for events in [events, rest] {
        let step = ChatStep { choice: 0, events, probs: Vec::new(), stats: &stats };
        frames.extend(data(writer.step(step)));
    }
    frames.extend(data(writer.end(&[answer(parts(), Finish::EndOfText)])));
    let start = |index: usize, block: Value| json!({"type": "content_block_start", "index": index, "content_block": block});
    let delta = |index: usize, delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
    let stop = |index: usize| json!({"type": "content_block_stop", "index": index});
    let json_delta = |text| json!({"type": "input_json_delta", "partial_json": text});
    let call = |id| json!({"type": "tool_use", "id": id, "name": "f", "input": {}});
    let expected = vec![
        start(0, json!({"type": "thinking", "thinking": "", "signature": ""})),
        delta(0, json!({"type": "thinking_delta", "thinking": "h"})),
        delta(0, json!({"type": "thinking_delta", "thinking": "m"})),
        delta(0, json!({"type": "signature_delta", "signature": super::answer::SIGNATURE})),
        stop(0),
        start(1, json!({"type": "text", "text": ""})),
        delta(1, json!({"type": "text_delta", "text": "a"})),
        stop(1),
        start(2, call("toolu_1")),
        delta(2, json_delta("{\"x\":")),
        delta(2, json_delta("1}")),
        stop(2),
        start(3, call("toolu_2")),
        delta(3, json_delta("{}")),
        stop(3),
        start(4, json!({"type": "text", "text": ""})),
        delta(4, json!({"type": "text_delta", "text": "b"})),
        stop(4),
        json!({
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use", "stop_sequence": null},
            "usage": {
                "input_tokens": 5, "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 4, "output_tokens": 3,
            },
        }),
        json!({"type": "message_stop"}),
    ];
    assert_eq!(frames, expected);
}

#[test]
fn an_answer_without_parts_has_no_blocks() {
    let frames = data(writer().end(&[answer(Vec::new(), Finish::EndOfText)]));
    assert_eq!(frames[0]["delta"]["stop_reason"], "end_turn");
    assert_eq!(frames.len(), 2);
}

#[test]
fn a_whole_message_has_parsed_arguments_and_a_reason() {
    let whole = |events, finish| -> Map<String, Value> {
        serde_json::from_str(&writer().whole(&[answer(events, finish)]).data).unwrap()
    };
    let message = whole(parts(), Finish::EndOfText);
    let content = json!([
        {"type": "thinking", "thinking": "hm", "signature": super::answer::SIGNATURE},
        {"type": "text", "text": "ab"},
        {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"x": 1}},
        {"type": "tool_use", "id": "toolu_2", "name": "f", "input": {}},
    ]);
    assert_eq!(message["content"], content);
    assert_eq!(message["stop_reason"], "tool_use");
    let stopped = whole(vec![ChatEvent::Content("a".to_owned())], Finish::StopString);
    assert_eq!(stopped["stop_reason"], "stop_sequence");
    assert_eq!(stopped["stop_sequence"], "END");
    // A call that was cut off is none.
    let cut = whole(parts()[..5].to_vec(), Finish::Length);
    assert_eq!(cut["stop_reason"], "max_tokens");
    assert_eq!(cut["content"].as_array().unwrap().len(), 2);
}

#[test]
fn an_error_of_a_stream_is_an_event() {
    let error = crate::ApiError::overloaded("full");
    let frames = data(writer().error(&error));
    let expected =
        json!({"type": "error", "error": {"type": "rate_limit_error", "message": "full"}});
    assert_eq!(frames, [expected]);
}
