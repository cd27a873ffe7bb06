//! Responses from parts of answers made by hand.

mod bodies;

use std::sync::mpsc;

use serde_json::{Value, json};
use stonechat::llm::chat::{ChatEvent, ChatMessage};
use stonechat::{Completion, Finish};

use super::fields::Echo;
use super::objects::Head;
use super::writer::ResponseWriter;
use super::{Keeper, KeptResponse, input};
use crate::ApiError;
use crate::chat_answer::{ChatAnswer, ChatStep, ChatWriter};
use crate::generation::RequestStats;
use crate::text::Frame;
use bodies::{adapted, messages};

fn objects() -> ResponseWriter {
    objects_of(&json!({"input": "a"}))
}

/// Writer of the answer to a body.
fn objects_of(body: &Value) -> ResponseWriter {
    let echo = Echo::parse(body.as_object().unwrap()).unwrap();
    let mut objects = ResponseWriter::new(Head::new(None, "m", echo));
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
    ChatAnswer { message, completion, reasoning_tokens: 2 }
}

/// Events of a stream of these parts.
fn streamed(mut objects: ResponseWriter, events: &[ChatEvent], finish: Finish) -> Vec<Value> {
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

/// The AI SDK and Codex show summaries; reasoning that came twice would be shown twice.
#[test]
fn reasoning_takes_the_place_of_a_summary_that_was_asked_for() {
    for summary in ["auto", "concise", "detailed"] {
        let body = json!({"input": "a", "reasoning": {"summary": summary}});
        let events = streamed(objects_of(&body), &parts()[..4], Finish::EndOfText);
        let expected = [
            "output_item.added",
            "reasoning_summary_part.added",
            "reasoning_summary_text.delta",
            "reasoning_summary_text.delta",
            "reasoning_summary_text.done",
            "reasoning_summary_part.done",
            "output_item.done",
            "output_item.added",
        ];
        assert_eq!(kinds(&events)[2..10], expected);
        let item = &events[8]["item"];
        for event in &events[3..8] {
            assert_eq!((&event["item_id"], &event["output_index"]), (&item["id"], &json!(0)));
            assert_eq!(event["summary_index"], 0);
            assert!(event.get("content_index").is_none(), "{event}");
        }
        assert_eq!(events[3]["part"], json!({"type": "summary_text", "text": ""}));
        assert_eq!((&events[4]["delta"], &events[5]["delta"]), (&json!("Hm"), &json!(".")));
        assert_eq!(events[6]["text"], "Hm.");
        assert_eq!(events[7]["part"], json!({"type": "summary_text", "text": "Hm."}));
        assert_eq!(item["summary"], json!([events[7]["part"]]));
        assert_eq!((&item["content"], &item["status"]), (&json!([]), &json!("completed")));
        let response = &events.last().unwrap()["response"];
        assert_eq!(response["output"][0], *item);
        assert_eq!(response["reasoning"]["summary"], summary);
        assert_eq!(response["usage"]["output_tokens_details"]["reasoning_tokens"], 2);
        let again = messages(response["output"].clone());
        assert_eq!(again[0]["reasoning_content"], "Hm.");
    }
    let error = adapted(json!({"input": "a", "reasoning": {"summary": "long"}})).unwrap_err();
    assert!(error.message().starts_with("`reasoning.summary`: unknown variant `long`"), "{error}");
}

/// Agents run the calls of `output_item.done`.
#[test]
fn an_error_ends_no_item() {
    let mut objects = objects();
    let stats = RequestStats::new(0, 1);
    let mut frames = objects.start(&stats);
    let events = parts()[4..6].to_vec();
    frames.extend(objects.step(ChatStep { choice: 0, events, probs: Vec::new(), stats: &stats }));
    frames.extend(objects.error(&ApiError::server("boom")));
    let events = values(&frames);
    let expected = ["output_item.added", "function_call_arguments.delta", "failed"];
    assert_eq!(kinds(&events)[2..], expected);
    let response = &events[4]["response"];
    assert_eq!(response["output"][0]["status"], "incomplete");
    assert_eq!(response["error"], json!({"code": "server_error", "message": "boom"}));
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
    let items = body["output"].as_array().unwrap().iter();
    assert_eq!(kept.items, items.map(|item| item["id"].as_str().unwrap()).collect::<Vec<_>>());
    // The output is an input.
    let again = input::messages(body.get("output")).unwrap();
    assert_eq!(again.len(), 1);
    assert_eq!(again[0]["tool_calls"][1]["function"]["name"], "mcp__s__g");
    assert_eq!(again[0]["reasoning_content"], "Hm.");
}
