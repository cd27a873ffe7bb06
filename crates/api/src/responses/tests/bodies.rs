//! Bodies of Responses as those of chats.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use stonechat::sampling::SamplingOptions;

use crate::chat_answer::ChatDialect;
use crate::responses::{KeptResponse, ResponseFields, Responses, input};
use crate::text::Body;
use crate::{ApiResult, Defaults, ParseBody};

/// A body of this input after its rewriting.
pub(super) fn adapted(mut body: Value) -> ApiResult<Map<String, Value>> {
    let fields = body.as_object_mut().unwrap();
    ResponseFields::adapt(fields)?;
    Ok(std::mem::take(fields))
}

pub(super) fn messages(input: Value) -> Value {
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
            "`text.format.schema`: expected an object, got nothing",
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
    let expected = json!({"type": "json_object", "schema": {"type": "object"}});
    assert_eq!(body["response_format"], expected);
    let allowed = adapted(json!({
        "input": "a", "tools": [function("f"), function("g")],
        "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g"}]},
    })).unwrap();
    assert_eq!(allowed["tool_choice"], "required");
    assert_eq!(allowed["tools"].as_array().unwrap().len(), 1);
}

/// A body after its parsing.
fn parsed(body: &Value) -> Responses {
    let sampling = SamplingOptions::default();
    let defaults = Defaults::new(&sampling);
    let body = body.to_string();
    Body::<Responses>::parse(body.as_bytes(), &defaults).unwrap().into_own()
}

#[test]
fn references_stand_for_items_of_kept_responses() {
    let output = json!([
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": "Look."}]},
        {"type": "function_call", "id": "fc_1", "call_id": "a", "name": "f", "arguments": "{}",
            "status": "completed"},
        {"type": "function_call", "id": "fc_2", "call_id": "b", "name": "f", "arguments": "{\"x",
            "status": "incomplete"},
    ]);
    let kept = Arc::new(KeptResponse {
        id: "resp_1".to_owned(),
        body: json!({ "output": output }).to_string(),
        messages: "[]".to_owned(),
        items: ["msg_1", "fc_1", "fc_2"].map(str::to_owned).to_vec(),
    });
    let find = |id: &str| kept.items.iter().any(|it| it == id).then(|| Arc::clone(&kept));
    let reference = |id: &str| json!({"type": "item_reference", "id": id});
    let mut body = parsed(&json!({"instructions": "Be brief.", "input": [
        {"role": "user", "content": "a"}, reference("msg_1"), reference("msg_1"),
        reference("fc_1"), reference("fc_2"),
        {"type": "function_call_output", "call_id": "a", "output": "7"},
    ]}));
    body.resolve(find).unwrap();
    let call = json!({"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let expected = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "Look.", "tool_calls": [call]},
        {"role": "tool", "content": "7", "tool_call_id": "a", "name": "f"},
    ]);
    assert_eq!(json!(body.chat.messages), expected);
    // The messages that are kept have no instructions.
    assert_eq!(json!(body.own.own.history), json!(expected.as_array().unwrap()[1..]));

    let mut body = parsed(&json!({"input": [reference("msg_9")]}));
    let error = body.resolve(find).unwrap_err();
    assert_eq!((error.status(), error.param()), (404, Some("input[0]")));
    assert!(error.message().starts_with("`input[0]`: no item `msg_9`: "), "{error}");
}
