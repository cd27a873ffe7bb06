//! Odd numbers in every field of every route that the `OpenAPI` document describes: each answer is one of the client's
//! errors or a success, and the server goes on.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use stonechat_server::ServerOptions;

use crate::audio::{multilingual, noise, transcribe};
use crate::support::{Answer, App, language};
use crate::text::with;

/// Values of a numeric field.
fn odd() -> Vec<Value> {
    let mut odd = vec![json!(1e300), json!(-1e300), json!(1u64 << 63), json!(i64::MIN)];
    odd.extend([json!(u64::MAX), json!(-1), json!(0), json!(-0.0), json!(1), json!(1.5)]);
    odd.extend([json!(1e-300), json!("NaN"), json!(null), json!([]), json!({}), json!(true)]);
    odd
}

/// A small valid body of a route.
fn body(path: &str) -> Value {
    let text = json!({"prompt": "ab", "max_tokens": 2, "input_prefix": "a", "input_suffix": "b"});
    let messages = json!({"messages": [{"role": "user", "content": "ab"}], "max_tokens": 2});
    match path {
        "/v1/embeddings" | "/embedding" => json!({"input": "ab"}),
        "/tokenize" => json!({"content": "ab"}),
        "/detokenize" => json!({"tokens": [5]}),
        "/models/load" | "/models/unload" => json!({"model": "none"}),
        path if path.contains("chat") || path.contains("template") => messages,
        _ => text,
    }
}

/// A schema without its reference.
fn resolved<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str().and_then(|name| name.strip_prefix('#')) {
        Some(pointer) => document.pointer(pointer).unwrap(),
        None => schema,
    }
}

/// Fields of a schema: those that are numbers, and those of any form, which may hold numbers.
fn numeric(document: &Value, schema: &Value, found: &mut BTreeSet<String>) {
    let schema = resolved(document, schema);
    for part in schema["allOf"].as_array().into_iter().flatten() {
        numeric(document, part, found);
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let types = field["type"].to_string();
        if ["integer", "number", "object", "array"].iter().any(|kind| types.contains(kind)) {
            found.insert(name.clone());
        }
    }
}

/// A success or an error of the client. A time limit may also pass before the first token: that is 503.
fn is_fine(answer: &Answer, what: &str) {
    // An error within a stream has its status in the event.
    let is_answered =
        matches!(answer.status, 200 | 400..=499) && !answer.text.contains("\"code\":5");
    let is_late =
        what.contains(" timeout_ms ") && answer.text.contains("the time of the request passed");
    assert!(is_answered || is_late, "{what}: {answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn odd_numbers_in_any_field_are_refused_or_served() {
    let app = App::language().await;
    let document = app.get("/openapi.json").await.json();
    let mut n_fields = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        let schema = &item["post"]["requestBody"]["content"]["application/json"]["schema"];
        if schema.is_null() || path.contains('{') {
            continue;
        }
        let mut fields = BTreeSet::new();
        numeric(&document, schema, &mut fields);
        n_fields += fields.len();
        let served = app.post(path, &body(path)).await.status;
        for name in &fields {
            for value in odd() {
                for stream in [false, true] {
                    let fields = json!({"stream": stream, name.as_str(): value});
                    let answer = app.post(path, &with(body(path), fields)).await;
                    if answer.status != served {
                        is_fine(&answer, &format!("{path} {name} {value}"));
                    }
                }
            }
        }
        assert_eq!(app.get("/health").await.status, 200);
    }
    assert!(n_fields > 100, "{n_fields}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn odd_numbers_within_fields_are_refused_or_served() {
    let app = App::language().await;
    for value in odd() {
        let numbers = [
            ("/completion", json!({"prompt": [value]})),
            ("/completion", json!({"prompt": [[5, value], [value]]})),
            ("/v1/completions", json!({"prompt": ["a", value]})),
            ("/completion", json!({"logit_bias": [[value, 1]]})),
            ("/completion", json!({"logit_bias": [[5, value]]})),
            ("/completion", json!({"logit_bias": {"5": value}})),
            ("/completion", json!({"logit_bias": {value.to_string(): 1}})),
            ("/completion", json!({"lora": [{"id": value, "scale": value}]})),
            ("/completion", json!({"stream_options": {"include_usage": value}})),
            ("/completion", json!({"stop": [value]})),
            ("/lora-adapters", json!([{"id": value, "scale": value}])),
            ("/lora-adapters", value.clone()),
            ("/v1/embeddings", json!({"input": [value]})),
            ("/embedding", json!({"input": [[5, value]]})),
            ("/tokenize", json!({"content": [value]})),
            ("/detokenize", json!({"tokens": [value]})),
            ("/v1/chat/completions", json!({"messages": [{"role": value, "content": "a"}]})),
            ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": value}]})),
            ("/v1/chat/completions", json!({"messages": value})),
            ("/v1/chat/completions", json!({"chat_template_kwargs": {"n": value}})),
        ];
        for (path, fields) in numbers {
            let fields = if fields.is_object() { with(body(path), fields) } else { fields };
            let answer = app.post(path, &fields).await;
            if path != "/lora-adapters" || answer.status != 501 {
                is_fine(&answer, &format!("{path} {fields}"));
            }
        }
        let slot = format!("/slots/{}?action=erase", value.to_string().replace(['{', '}'], "x"));
        let slot = slot.replace(['[', ']', '"'], "x");
        let answer = app.post(&slot, &json!({"filename": value})).await;
        assert!(matches!(answer.status, 400 | 501), "{slot}: {answer:?}");
    }
    assert_eq!(app.get("/health").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn odd_numbers_in_schemas_are_refused_or_served() {
    let app = App::language().await;
    for (kind, names) in [
        ("string", &["minLength", "maxLength"][..]),
        ("array", &["minItems", "maxItems"]),
        ("object", &["minProperties", "maxProperties"]),
        ("integer", &["minimum", "maximum", "exclusiveMinimum", "multipleOf"]),
        ("number", &["minimum", "maximum", "exclusiveMaximum", "multipleOf"]),
    ] {
        for name in names {
            for value in odd() {
                let schema = json!({"type": kind, *name: value});
                let fields = json!({"json_schema": schema});
                let answer = app.post("/completion", &with(body("/completion"), fields)).await;
                is_fine(&answer, &schema.to_string());
            }
        }
    }
    assert_eq!(app.get("/health").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn odd_numbers_in_forms_are_refused_or_served() {
    let options = ServerOptions { models: vec![multilingual()], ..ServerOptions::default() };
    let app = App::new(options).await;
    let document = app.get("/openapi.json").await.json();
    let post = &document["paths"]["/v1/audio/transcriptions"]["post"];
    let content = &post["requestBody"]["content"]["multipart/form-data"];
    let mut names = BTreeSet::new();
    numeric(&document, &content["schema"], &mut names);
    for name in ["beam_size", "best_of", "batch_size", "seed", "temperature"] {
        assert!(names.contains(name), "{name} of {names:?}");
    }
    names.extend(["threshold", "prefix_padding_ms", "silence_duration_ms"].map(str::to_owned));
    let wav = noise(1);
    for name in &names {
        let is_vad = name == "threshold" || name.ends_with("_ms");
        let name = if is_vad { format!("chunking_strategy[{name}]") } else { name.clone() };
        let values = odd().into_iter().map(|value| value.to_string().replace('"', ""));
        for value in values.chain(["inf".to_owned(), "-nan".to_owned(), String::new()]) {
            let mut fields = vec![(name.as_str(), value.as_str())];
            if is_vad {
                fields.push(("chunking_strategy[type]", "server_vad"));
            }
            is_fine(&transcribe(&app, &fields, &wav).await, &format!("{name} {value}"));
        }
    }
    assert_eq!(app.get("/health").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn odd_numbers_in_queries_are_refused_or_served() {
    let options = ServerOptions { models: vec![language("m")], ..ServerOptions::default() };
    let app = App::new(options).await;
    for value in ["1e300", "-1", "0", "9223372036854775808", "NaN", "1.5", "%00", ""] {
        for path in ["/slots?fail_on_no_slot=", "/slots?model=", "/props?model=", "/v1/models/"] {
            let answer = app.get(&format!("{path}{value}")).await;
            assert!(matches!(answer.status, 200 | 400..=499), "{path}{value}: {answer:?}");
        }
    }
    assert_eq!(app.get("/health").await.status, 200);
}
