//! Bodies of the requests, in the forms of their APIs.

use serde_json::{Value, json};

/// Documents of a request to rank.
pub(super) const N_DOCUMENTS: u64 = 3;

/// Values of a request.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) model: String,
    pub(super) text: String,
    pub(super) max_tokens: usize,
    pub(super) is_stream: bool,
    /// Response that this one continues.
    pub(super) previous: Option<String>,
}

/// Adds fields to a body.
pub(super) fn with(mut body: Value, fields: Value) -> Value {
    if let (Value::Object(body), Value::Object(fields)) = (&mut body, fields) {
        body.extend(fields);
    }
    body
}

fn user(text: &str) -> Value {
    json!([{"role": "user", "content": text}])
}

/// Text that calls the tool, as the template of the scripted model reads it.
fn weather(ask: &Ask) -> String {
    format!("What is the weather? {}", ask.text)
}

/// The tool, with its schema in the field `schema`.
fn tool(schema: &str) -> Value {
    // A call that is required ends, whatever the model would write.
    let properties =
        json!({"city": {"enum": ["Bergen", "Oslo"]}, "unit": {"enum": ["celsius", "kelvin"]}});
    let required = json!(["city", "unit"]);
    json!({
        "name": "get_weather",
        "description": "Weather of a city",
        schema: {"type": "object", "properties": properties, "required": required},
    })
}

/// Tools in the form of chat completions.
fn functions() -> Value {
    json!([{"type": "function", "function": tool("parameters")}])
}

fn openai(ask: &Ask, fields: Value) -> Value {
    let options = ask.is_stream.then(|| json!({"include_usage": true}));
    let body = json!({
        "model": ask.model, "max_tokens": ask.max_tokens, "temperature": 0.0, "seed": 1,
        "ignore_eos": true, "stream": ask.is_stream, "stream_options": options,
    });
    with(body, fields)
}

pub(super) fn chat(ask: &Ask) -> Value {
    openai(ask, json!({"messages": user(&ask.text)}))
}

pub(super) fn choices(ask: &Ask) -> Value {
    with(chat(ask), json!({"n": 2, "temperature": 1.0}))
}

pub(super) fn probabilities(ask: &Ask) -> Value {
    with(chat(ask), json!({"logprobs": true, "top_logprobs": 20}))
}

pub(super) fn chat_auto(ask: &Ask) -> Value {
    let messages = user(&weather(ask));
    openai(ask, json!({"messages": messages, "tools": functions(), "ignore_eos": false}))
}

pub(super) fn chat_required(ask: &Ask) -> Value {
    let fields = json!({"tool_choice": "required", "parallel_tool_calls": false});
    with(chat_auto(ask), fields)
}

pub(super) fn echo(ask: &Ask) -> Value {
    openai(ask, json!({"prompt": ask.text, "echo": true, "logprobs": 1}))
}

pub(super) fn response(ask: &Ask) -> Value {
    json!({
        "model": ask.model, "input": ask.text, "max_output_tokens": ask.max_tokens,
        "temperature": 0.0, "ignore_eos": true, "stream": ask.is_stream,
        "previous_response_id": ask.previous,
    })
}

pub(super) fn response_not_stored(ask: &Ask) -> Value {
    with(response(ask), json!({"store": false}))
}

pub(super) fn response_call(ask: &Ask) -> Value {
    let tools = json!([with(json!({"type": "function"}), tool("parameters"))]);
    with(response(ask), json!({"input": weather(ask), "tools": tools, "ignore_eos": false}))
}

pub(super) fn input_tokens(ask: &Ask) -> Value {
    json!({"model": ask.model, "input": ask.text})
}

pub(super) fn message(ask: &Ask) -> Value {
    with(
        count_tokens(ask),
        json!({
            "max_tokens": ask.max_tokens, "temperature": 0.0, "ignore_eos": true,
            "stream": ask.is_stream,
        }),
    )
}

pub(super) fn message_call(ask: &Ask) -> Value {
    let fields = json!({
        "messages": user(&weather(ask)), "tools": [tool("input_schema")], "ignore_eos": false,
    });
    with(message(ask), fields)
}

pub(super) fn count_tokens(ask: &Ask) -> Value {
    json!({"model": ask.model, "messages": user(&ask.text)})
}

fn ollama(ask: &Ask, ignores_eos: bool, fields: Value) -> Value {
    let options =
        json!({"num_predict": ask.max_tokens, "temperature": 0.0, "ignore_eos": ignores_eos});
    with(json!({"model": ask.model, "stream": ask.is_stream, "options": options}), fields)
}

pub(super) fn ollama_chat(ask: &Ask) -> Value {
    ollama(ask, true, json!({"messages": user(&ask.text)}))
}

pub(super) fn ollama_call(ask: &Ask) -> Value {
    ollama(ask, false, json!({"messages": user(&weather(ask)), "tools": functions()}))
}

pub(super) fn ollama_generate(ask: &Ask) -> Value {
    ollama(ask, true, json!({"prompt": ask.text}))
}

pub(super) fn embed(ask: &Ask) -> Value {
    json!({"model": ask.model, "input": [ask.text, "Granite is a hard stone."]})
}

pub(super) fn rerank(ask: &Ask) -> Value {
    let documents: Vec<String> = (0..N_DOCUMENTS).map(|i| format!("{i} {}", ask.text)).collect();
    let query = "Which document is about stones?";
    json!({"model": ask.model, "query": query, "documents": documents, "return_documents": true})
}
