//! Bodies that ask for too much: each is refused by the name of its field, and the server goes on.

use serde_json::{Value, json};
use stonechat_server::ServerOptions;

use crate::support::{Answer, App, language};
use crate::text::{chat, chunks, greedy, with};

/// Whole numbers of a request for text.
const INTEGERS: [&str; 22] = [
    "max_tokens",
    "max_completion_tokens",
    "n_predict",
    "seed",
    "top_k",
    "repeat_last_n",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "mirostat",
    "min_keep",
    "n_probs",
    "top_logprobs",
    "priority",
    "id_slot",
    "n_keep",
    "t_max_predict_ms",
    "timeout_ms",
    "sse_ping_interval",
    "n",
    "n_cmpl",
    "best_of",
    "logprobs",
];
/// Other numbers of a body.
const FLOATS: [&str; 18] = [
    "temperature",
    "dynatemp_range",
    "dynatemp_exponent",
    "top_p",
    "min_p",
    "top_n_sigma",
    "xtc_probability",
    "xtc_threshold",
    "typical_p",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
    "dry_multiplier",
    "dry_base",
    "mirostat_tau",
    "mirostat_eta",
    "adaptive_target",
    "adaptive_decay",
];

/// Routes of text, with a small body of each.
fn routes() -> [(&'static str, Value); 3] {
    let prompt = with(json!({"prompt": "ab", "max_tokens": 2}), greedy());
    [
        ("/v1/chat/completions", with(chat(), json!({"max_tokens": 2}))),
        ("/v1/completions", prompt.clone()),
        ("/completion", prompt),
    ]
}

#[track_caller]
fn is_refused(answer: &Answer, name: &str, why: &str) {
    assert_eq!(answer.status, 400, "{why}: {}", answer.text);
    assert!(answer.message().contains(name), "{why}: {}", answer.message());
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_out_of_range_are_refused_by_name() {
    let app = App::language().await;
    for (path, body) in routes() {
        for name in INTEGERS {
            for wrong in [json!(1e25), json!(-1e25), json!(1e300), json!(1.5)] {
                let why = format!("{path} {name} {wrong}");
                let answer = app.post(path, &with(body.clone(), json!({ name: wrong }))).await;
                is_refused(&answer, name, &why);
            }
            for huge in [json!(i64::MAX), json!(u64::MAX), json!(i64::MIN), json!(-7)] {
                let answer = app.post(path, &with(body.clone(), json!({ name: huge }))).await;
                assert!(matches!(answer.status, 200 | 400), "{path} {name} {huge}: {answer:?}");
                assert!(
                    answer.status == 400 || matches!(name, "seed" | "priority"),
                    "{name} {huge}"
                );
            }
        }
        for name in FLOATS {
            let wrong = if name.contains("target") { json!(1e300) } else { json!(-1e300) };
            let answer = app.post(path, &with(body.clone(), json!({ name: wrong }))).await;
            is_refused(&answer, name, &format!("{path} {name}"));
        }
        let answer = app.post(path, &body).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn counts_and_lengths_have_limits() {
    let app = App::language().await;
    for (path, body) in routes() {
        for (fields, name) in [
            (json!({"n": 100_000_000_000u64}), "`n`"),
            (json!({"stop": vec!["a"; 10_000]}), "`stop`"),
            (json!({"stop": "a".repeat(1 << 20)}), "`stop`"),
            (
                json!({"dry_multiplier": 1, "dry_sequence_breakers": vec!["a"; 1000]}),
                "`dry_sequence_breakers`",
            ),
            (json!({"samplers": vec!["top_k"; 10_000]}), "`samplers`"),
            (json!({"samplers": "k".repeat(10_000)}), "`samplers`"),
            (json!({"logit_bias": vec![[1, 1]; 100_000]}), "`logit_bias`"),
            (json!({"grammar": format!("root ::= \"{}\"", "a".repeat(1 << 20))}), "`grammar`"),
            (json!({"json_schema": {"description": "a".repeat(1 << 20)}}), "`json_schema`"),
        ] {
            let answer = app.post(path, &with(body.clone(), fields)).await;
            is_refused(&answer, name, &format!("{path} {name}"));
        }
    }
    for path in ["/v1/completions", "/completion"] {
        for fields in
            [json!({"prompt": vec!["a"; 100_000]}), json!({"prompt": vec!["a"; 100], "n": 16})]
        {
            is_refused(&app.post(path, &fields).await, "`prompt`", path);
        }
    }
    for path in ["/v1/embeddings", "/embedding"] {
        let answer = app.post(path, &json!({"input": vec!["a"; 2049]})).await;
        is_refused(&answer, "`input`: expected at most 2048 items, got 2049", path);
        for (name, wrong) in [("dimensions", json!(1e30)), ("embd_normalize", json!(-5))] {
            let answer = app.post(path, &json!({"input": "a", name: wrong})).await;
            is_refused(&answer, name, path);
        }
        let answer = app.post(path, &json!({"input": "a", "dimensions": 3.0})).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_number_without_a_fraction_is_whole() {
    let app = App::language().await;
    for (path, body) in routes() {
        let numbers = json!({"max_tokens": 3.0, "seed": 1e3, "top_k": 40.0, "n": 1.0});
        let answer = app.post(path, &with(body.clone(), numbers)).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let answer = app.post(path, &with(body, json!({"seed": u64::MAX}))).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_supported_is_refused() {
    let app = App::language().await;
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    let wizard = json!([{"role": "wizard", "content": "a"}]);
    for (fields, name) in [
        (json!({"tools": [{"type": "web_search"}]}), "`tools[0].type`"),
        (json!({"tool_choice": "required"}), "`tool_choice`"),
        (
            json!({"tools": tools, "tool_choice": {"type": "function", "name": "g"}}),
            "`tool_choice`",
        ),
        (json!({"functions": [{"name": "f"}]}), "`functions`"),
        (json!({"modalities": ["text", "audio"]}), "`modalities`"),
        (json!({"web_search_options": {}}), "`web_search_options`"),
        (json!({"messages": wizard}), "`messages[0].role`"),
        (json!({"max_tokns": 3}), "did you mean `max_tokens`"),
        (
            json!({"response_format": {"type": "json_object", "schema": 123}}),
            "`response_format.schema`",
        ),
    ] {
        is_refused(&app.post("/v1/chat/completions", &with(chat(), fields)).await, name, name);
    }
    for fine in [
        json!({"tools": [], "tool_choice": "none", "user": "me", "guardrails": {"a": 1}}),
        json!({"tools": null, "functions": null, "modalities": ["text"]}),
        json!({"tools": tools, "tool_choice": "none"}),
        json!({"tools": tools}),
    ] {
        let answer = app.post("/v1/chat/completions", &with(chat(), fine)).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_beyond_all_times_is_none() {
    let forever = Some(std::time::Duration::MAX);
    let app = App::new(ServerOptions {
        models: vec![language("m")],
        request_timeout: forever,
        load_timeout: forever,
        ..ServerOptions::default()
    });
    let app = app.await;
    assert_eq!(app.post("/v1/chat/completions", &chat()).await.status, 200);
    assert_eq!(app.post("/v1/embeddings", &json!({"input": "a"})).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_keeps_its_leading_blanks() {
    let app = App::language().await;
    let grammar = json!({"grammar": "root ::= \"  ab\"", "ignore_eos": false});
    let body = with(chat(), grammar);
    let answer = app.post("/v1/chat/completions", &body).await.json();
    assert_eq!(answer["choices"][0]["message"]["content"], "  ab");
    let streamed = app.post("/v1/chat/completions", &with(body, json!({"stream": true}))).await;
    let text: String = chunks(&streamed)
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(text, "  ab");
}
