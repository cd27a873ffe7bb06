//! Anthropic's messages, on a model of random weights.

use serde_json::{Value, json};

use crate::support::{Answer, App};
use crate::text::with;

pub(crate) fn body() -> Value {
    json!({
        "model": "claude-any",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "ab"}]}],
        "max_tokens": 8,
        "temperature": 0,
        "ignore_eos": true,
    })
}

/// Data of the events of a stream, whose names are those of their types.
#[track_caller]
pub(crate) fn events(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.header("content-type"), "text/event-stream");
    let events = answer.text.split("\n\n").filter(|event| !event.is_empty());
    let data = |event: &str| {
        let (name, data) = event.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["type"], name);
        data
    };
    events.map(data).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_answered_whole_or_as_a_stream() {
    let app = App::language().await;
    let whole = app.post("/v1/messages?beta=true", &body()).await.json();
    assert_eq!((&whole["type"], &whole["role"]), (&json!("message"), &json!("assistant")));
    assert_eq!((&whole["model"], &whole["stop_reason"]), (&json!("m"), &json!("max_tokens")));
    assert_eq!(
        (&whole["stop_sequence"], &whole["content"][0]["type"]),
        (&json!(null), &json!("text"))
    );
    let usage = &whole["usage"];
    assert_eq!(
        (&usage["output_tokens"], &usage["cache_read_input_tokens"]),
        (&json!(8), &json!(0))
    );
    let text = whole["content"][0]["text"].as_str().unwrap();

    let counted = app.post("/v1/messages/count_tokens", &body()).await.json();
    assert_eq!(counted, json!({"input_tokens": usage["input_tokens"]}));

    let events = events(&app.post("/v1/messages", &with(body(), json!({"stream": true}))).await);
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds[..3], ["message_start", "ping", "content_block_start"]);
    assert_eq!(kinds[kinds.len() - 3..], ["content_block_stop", "message_delta", "message_stop"]);
    let deltas = events.iter().filter_map(|event| event["delta"]["text"].as_str());
    assert_eq!(deltas.collect::<String>(), text);
    // The second request finds the prompt of the first, which does not count as input.
    let usage = &events[0]["message"]["usage"];
    let read = usage["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!(usage["input_tokens"].as_u64().unwrap() + read, counted["input_tokens"]);
    assert!(read > 0);
    let end = &events[events.len() - 2];
    assert_eq!(end["delta"]["stop_reason"], "max_tokens");
    assert_eq!(end["usage"]["output_tokens"], 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_sequences_are_reported() {
    let app = App::language().await;
    let whole = app.post("/v1/messages", &body()).await.json();
    let text = whole["content"][0]["text"].as_str().unwrap();
    let stop: String = text.chars().skip(1).take(1).collect();
    let fields = with(body(), json!({"stop_sequences": [stop]}));
    let stopped = app.post("/v1/messages", &fields).await.json();
    assert_eq!(stopped["stop_reason"], "stop_sequence");
    assert_eq!(stopped["stop_sequence"], stop);
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_have_the_form_of_anthropic() {
    let app = App::language().await;
    let mut invalid = body();
    invalid.as_object_mut().unwrap().remove("max_tokens");
    let answer = app.post("/v1/messages", &invalid).await;
    let error = json!({"type": "error", "error": {
        "type": "invalid_request_error",
        "message": "`max_tokens`: expected a whole number, got nothing",
    }});
    assert_eq!((answer.status, answer.json()), (400, error));
    // A count needs no maximum.
    assert_eq!(app.post("/v1/messages/count_tokens", &invalid).await.status, 200);
    let answer = app.get("/v1/messages").await;
    assert_eq!((answer.status, &answer.json()["type"]), (405, &"error".into()));
    let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
    assert_eq!(message, "GET is not allowed for this path (allowed: POST)");
    // Claude Code shortens a conversation when it reads these words.
    let long = json!([{"role": "user", "content": "ab ".repeat(20_000)}]);
    let answer = app.post("/v1/messages", &with(body(), json!({"messages": long}))).await;
    let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
    assert_eq!(answer.status, 400);
    assert!(
        message.starts_with("prompt is too long: ") && message.ends_with(" maximum"),
        "{message}"
    );
}
