//! Bodies and writers of Responses, with parts of answers made by hand.

use std::sync::mpsc;

use serde_json::{Map, Value, json};
use stonechat::llm::chat::{ChatEvent, ChatMessage};
use stonechat::{Completion, Finish};

use super::objects::{Head, ResponseObjects};
use super::{Echo, Keeper, KeptResponse, ResponseFields, input};
use crate::chat_answer::{ChatAnswer, ChatDialect, ChatStep, ChatWriter};
use crate::generation::RequestStats;
use crate::text::Frame;
use crate::{ApiError, ApiResult};

/// A body of this input after its rewriting.
fn adapted(mut body: Value) -> ApiResult<Map<String, Value>> {
    let fields = body.as_object_mut().unwrap();
    ResponseFields::adapt(fields)?;
    Ok(std::mem::take(fields))
}

fn messages(input: Value) -> Value {
    input::messages(Some(&input)).unwrap().into()
}

#[track_caller]
fn refused(body: Value, expected: &str) {
    let error = adapted(body).unwrap_err();
    assert_eq!((error.status(), error.message()), (400, expected));
}

#[test]
fn items_become_messages() {
    let got = messages(json!([
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
        {"role": "user", "content": "Weather?"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x",
            "content": [{"type": "reasoning_text", "text": "Two cities."}]},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{\"x\":1}"},
        {"type": "function_call", "call_id": "b", "name": "g", "namespace": "mcp__s__", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "7"}]},
        {"type": "function_call_output", "call_id": "c", "output": "8"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
    ]));
    let call = |id: &str, name: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    let expected = json!([
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "reasoning_content": "Two cities.",
            "tool_calls": [call("a", "f", "{\"x\":1}"), call("b", "mcp__s__g", "{}")]},
        {"role": "tool", "tool_call_id": "b", "name": "mcp__s__g", "content": "7"},
        {"role": "tool", "tool_call_id": "c", "content": "8"},
        {"role": "assistant", "content": "No."},
    ]);
    assert_eq!(got, expected);
}

/// `LocalAI` 10040.
#[test]
fn bare_items_with_a_role_are_messages() {
    let got =
        messages(json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]));
    assert_eq!(got[1], json!({"role": "assistant", "content": "b"}));
}

/// ollama 15424.
#[test]
fn an_item_without_type_and_role_is_named() {
    refused(
        json!({"input": [{"content": "a"}]}),
        "`input[0]`: expected an item with a `type`, or a message with a `role`, got neither",
    );
}

#[test]
fn invalid_fields_are_named() {
    let image = json!([{"role": "user", "content": [{"type": "input_image"}]}]);
    for (fields, expected) in [
        (
            json!({"input": image}),
            "`input[0].content[0].type`: expected `input_text`, `output_text` or `refusal`, got `input_image`, which needs a model that sees",
        ),
        (
            json!({"input": [{"type": "compaction"}]}),
            "`input[0].type`: expected `message`, `reasoning`, `function_call` or `function_call_output`, got `compaction`",
        ),
        (json!({}), "`input`: expected a string or a list of items, got nothing"),
        (
            json!({"input": "a", "background": true}),
            "`background`: expected false: no request runs detached, got true",
        ),
        (
            json!({"input": "a", "truncation": "auto"}),
            "`truncation`: expected `disabled`, got `auto`",
        ),
        (
            json!({"input": "a", "tool_choice": {"type": "web_search"}, "tools": [{"type": "web_search"}]}),
            "`tool_choice.type`: expected `function` or `allowed_tools`, got `web_search`",
        ),
        (
            json!({"input": "a", "text": {"format": {"type": "json_schema"}}}),
            "`text.format.schema`: expected an object, got null",
        ),
        (
            json!({"input": "a", "conversation": "c"}),
            "`conversation`: expected none: `previous_response_id` continues a response, got a string",
        ),
        (
            json!({"input": "a", "tools": [{"type": "function"}]}),
            "`tools[0].name`: expected a string, got nothing",
        ),
    ] {
        refused(fields, expected);
    }
    let error = adapted(json!({"input": "a", "store": "yes"})).unwrap_err();
    assert!(error.message().starts_with("`store`: "), "{error}");
}

/// codex 10635 and 36942.
#[test]
fn tools_of_servers_are_ignored_and_namespaces_expanded() {
    let function =
        |name: &str| json!({"type": "function", "name": name, "parameters": {"type": "object"}});
    let body = adapted(json!({
        "input": "a",
        "tools": [
            function("f"), {"type": "web_search"}, {"type": "custom", "name": "patch"},
            {"type": "image_generation"},
            {"type": "namespace", "name": "mcp__s", "tools": [function("g"), {"type": "custom"}]},
        ],
        "max_output_tokens": 7, "instructions": "Be brief.", "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}, "verbosity": "low"},
    })).unwrap();
    let names: Vec<&Value> =
        body["tools"].as_array().unwrap().iter().map(|tool| &tool["function"]["name"]).collect();
    assert_eq!(names, ["f", "mcp__s__g"]);
    assert_eq!(body["max_tokens"], 7);
    assert_eq!(body["messages"][0], json!({"role": "system", "content": "Be brief."}));
    assert_eq!(body["response_format"]["json_schema"]["schema"], json!({"type": "object"}));
    let allowed = adapted(json!({
        "input": "a", "tools": [function("f"), function("g")],
        "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g"}]},
    })).unwrap();
    assert_eq!(allowed["tool_choice"], "required");
    assert_eq!(allowed["tools"].as_array().unwrap().len(), 1);
}

fn objects() -> ResponseObjects {
    let mut objects = ResponseObjects::new(Head::new(None, "m", Echo::default()));
    let names = ["mcp__s".to_owned(), "g".to_owned()];
    objects.namespaces.insert("mcp__s__g".to_owned(), names);
    objects
}

fn parts() -> Vec<ChatEvent> {
    let call = |index, name: &str| ChatEvent::ToolCall {
        index,
        id: Some(format!("call_{index}")),
        name: name.to_owned(),
    };
    let arguments = |index, text: &str| ChatEvent::Arguments { index, fragment: text.to_owned() };
    vec![
        ChatEvent::Reasoning("Hm".to_owned()),
        ChatEvent::Reasoning(".".to_owned()),
        ChatEvent::Content("Look".to_owned()),
        ChatEvent::Content("ing.".to_owned()),
        call(0, "f"),
        arguments(0, "{\"a\""),
        arguments(0, ":1}"),
        call(1, "mcp__s__g"),
        arguments(1, "{}"),
    ]
}

fn answer(events: &[ChatEvent], finish: Finish) -> ChatAnswer {
    let message: ChatMessage = events.iter().cloned().collect();
    let mut completion = Completion::default();
    completion.finish = finish;
    ChatAnswer { message, completion }
}

/// Events of a stream of these parts.
fn streamed(mut objects: ResponseObjects, events: &[ChatEvent], finish: Finish) -> Vec<Value> {
    let stats = RequestStats::new(0, 1);
    let mut frames = objects.start(&stats);
    for event in events {
        let events = vec![event.clone()];
        frames.extend(objects.step(ChatStep {
            choice: 0,
            events,
            probs: Vec::new(),
            stats: &stats,
        }));
    }
    frames.extend(objects.end(&[answer(events, finish)]));
    values(&frames)
}

/// Objects of frames, whose numbers and names are checked.
fn values(frames: &[Frame]) -> Vec<Value> {
    let value = |(index, frame): (usize, &Frame)| {
        let value: Value = serde_json::from_str(&frame.data).unwrap();
        assert_eq!(value["sequence_number"], index);
        assert_eq!(value["type"], frame.event.unwrap());
        value
    };
    frames.iter().enumerate().map(value).collect()
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events
        .iter()
        .map(|event| event["type"].as_str().unwrap().strip_prefix("response.").unwrap())
        .collect()
}

/// mistral.rs 2309; llama.cpp 22072.
#[test]
fn items_have_one_identifier_in_all_events() {
    let events = streamed(objects(), &parts(), Finish::EndOfText);
    let item = |part: &str, delta: &'static str, n: usize| {
        let mut kinds = vec!["output_item.added", "content_part.added"];
        kinds.extend(vec![delta; n]);
        kinds.retain(|kind| part != "call" || *kind != "content_part.added");
        kinds
    };
    let mut expected = vec!["created", "in_progress"];
    expected.extend(item("text", "reasoning_text.delta", 2));
    expected.extend(["reasoning_text.done", "content_part.done", "output_item.done"]);
    expected.extend(item("text", "output_text.delta", 2));
    expected.extend(["output_text.done", "content_part.done", "output_item.done"]);
    for n in [2, 1] {
        expected.extend(item("call", "function_call_arguments.delta", n));
        expected.extend(["function_call_arguments.done", "output_item.done"]);
    }
    expected.push("completed");
    assert_eq!(kinds(&events), expected);
    let output = events.last().unwrap()["response"]["output"].as_array().unwrap();
    assert_eq!(output.len(), 4);
    for event in &events[2..events.len() - 1] {
        let id = event.get("item_id").unwrap_or(&event["item"]["id"]);
        let index = event["output_index"].as_u64().unwrap();
        assert_eq!(*id, output[usize::try_from(index).unwrap()]["id"], "{event}");
    }
    assert_eq!(output[0]["content"][0], json!({"type": "reasoning_text", "text": "Hm."}));
    assert_eq!(output[1]["content"][0]["text"], "Looking.");
    assert_eq!(output[2]["arguments"], "{\"a\":1}");
    // Codex finds tools of MCP servers by both.
    assert_eq!((&output[3]["namespace"], &output[3]["name"]), (&"mcp__s".into(), &"g".into()));
}

#[test]
fn a_whole_response_equals_that_of_the_stream() {
    let without_ids = |mut response: Value| {
        for item in response["output"].as_array_mut().unwrap() {
            item["id"] = Value::Null;
        }
        response["id"] = Value::Null;
        for time in ["created_at", "completed_at"] {
            response[time] = Value::Null;
        }
        response
    };
    for (events, finish) in
        [(parts(), Finish::EndOfText), (parts(), Finish::Length), (vec![], Finish::EndOfText)]
    {
        let streamed = streamed(objects(), &events, finish);
        let whole = objects().whole(&[answer(&events, finish)]);
        let last = streamed.last().unwrap()["response"].clone();
        assert_eq!(without_ids(serde_json::from_str(&whole.data).unwrap()), without_ids(last));
    }
}

#[test]
fn a_stream_ends_with_completed_also_if_it_is_cut_off() {
    let events = streamed(objects(), &parts()[..3], Finish::Length);
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.completed");
    assert_eq!(last["response"]["status"], "incomplete");
    assert_eq!(last["response"]["incomplete_details"]["reason"], "max_output_tokens");
    assert_eq!(last["response"]["output"][1]["status"], "incomplete");
    assert_eq!(last["response"]["output"][0]["status"], "completed");
}

#[test]
fn errors_have_the_codes_that_codex_reads() {
    for (error, code, text) in [
        (ApiError::context_overflow(9, 8), "context_length_exceeded", "exceeds the available"),
        (ApiError::overloaded("full"), "rate_limit_exceeded", "full. Please try again in 1s."),
    ] {
        let events = values(&objects().error(&error));
        assert_eq!(kinds(&events), ["created", "in_progress", "failed"]);
        let response = &events[2]["response"];
        assert_eq!(
            (&response["status"], &response["error"]["code"]),
            (&"failed".into(), &code.into())
        );
        assert!(response["error"]["message"].as_str().unwrap().contains(text));
    }
}

#[test]
fn a_response_is_kept_with_its_messages() {
    let (sender, receiver) = mpsc::channel();
    let mut objects = objects();
    let keep = Box::new(move |kept: KeptResponse| sender.send(kept).unwrap());
    objects.kept = Some((Keeper { id: "resp_1".to_owned(), keep }, "[]".to_owned()));
    let events = streamed(objects, &parts(), Finish::EndOfText);
    let kept = receiver.recv().unwrap();
    let body: Value = serde_json::from_str(&kept.body).unwrap();
    assert_eq!(body, events.last().unwrap()["response"]);
    // The output is an input.
    let again = input::messages(body.get("output")).unwrap();
    assert_eq!(again.len(), 1);
    assert_eq!(again[0]["tool_calls"][1]["function"]["name"], "mcp__s__g");
    assert_eq!(again[0]["reasoning_content"], "Hm.");
}
