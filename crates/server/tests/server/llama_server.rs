//! Behaviours that clients of llama-server rely on, route by route, on a model of random weights.

use std::time::Duration;

use serde_json::{Value, json};
use stonechat::llm::Pooling;
use stonechat_server::{ModelOption, ServerOptions};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::support::{App, language, with_metadata};
use crate::text::{chat, chunks, greedy, with};

fn options() -> ServerOptions {
    ServerOptions { models: vec![language("m")], ..ServerOptions::default() }
}

/// A greedy `/completion`.
fn native(fields: Value) -> Value {
    with(with(json!({"prompt": "ab", "n_predict": 4}), greedy()), fields)
}

/// A text that ends only with its request: the context is shifted when it is full.
fn endless() -> Value {
    native(json!({"n_predict": -1}))
}

/// A server with one slot, whose texts may be endless.
async fn one_slot() -> App {
    let mut options = ServerOptions { context_shift: true, metrics: true, ..options() };
    options.engine.n_parallel = 1;
    App::new(options).await
}

#[track_caller]
fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

/// `data` of the events of `/completion`, which has no `[DONE]`.
async fn native_events(app: &App, fields: Value) -> Vec<Value> {
    let body = native(with(json!({"stream": true}), fields));
    chunks(&app.post("/completion", &body).await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn routes_without_v1_answer_as_those_with_it() {
    let app = App::language().await;
    let (with_v1, without) = (
        app.post("/v1/chat/completions", &chat()).await.json(),
        app.post("/chat/completions", &chat()).await.json(),
    );
    assert_eq!(with_v1["choices"], without["choices"]);
    let body = native(json!({}));
    let (one, other) =
        (app.post("/completion", &body).await.json(), app.post("/completions", &body).await.json());
    assert_eq!(one["content"], other["content"]);
    let body = json!({"content": "ab"});
    let (one, other) = (app.post("/embedding", &body).await, app.post("/embeddings", &body).await);
    assert_eq!(one.json(), other.json());
    for path in ["/v1/none", "/v1", "/v2/models"] {
        let answer = app.post(path, &json!({})).await;
        assert_eq!((answer.status, answer.kind().as_str()), (404, "not_found_error"), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prompts_are_texts_tokens_both_or_objects() {
    let app = App::language().await;
    let content = async |prompt: Value| {
        app.post("/completion", &native(json!({"prompt": prompt}))).await.json()
    };
    let tokens = app.post("/tokenize", &json!({"content": "ab cd"})).await.json()["tokens"].clone();
    let whole = content(json!("ab cd")).await;
    assert_eq!(whole["tokens_evaluated"], tokens.as_array().unwrap().len());
    assert_eq!((&whole["prompt"], &whole["index"]), (&json!("ab cd"), &json!(0)));
    let mixed = json!(["a", tokens[1], " cd"]);
    for prompt in [tokens.clone(), mixed, json!({"prompt_string": "ab cd"}), json!([tokens])] {
        let answer = content(prompt.clone()).await;
        assert_eq!(answer["content"], whole["content"], "{prompt}");
    }
    let several = content(json!(["ab cd", tokens, {"prompt_string": "ef"}])).await;
    let several = several.as_array().unwrap();
    let index: Vec<_> = several.iter().map(|answer| answer["index"].as_u64().unwrap()).collect();
    assert_eq!(index, [0, 1, 2]);
    assert_eq!(several[0]["content"], several[1]["content"]);
    // Several texts of one prompt.
    let texts = app.post("/completion", &native(json!({"n_cmpl": 2}))).await.json();
    let texts = texts.as_array().unwrap();
    assert_eq!((texts.len(), &texts[1]["index"]), (2, &json!(1)));
    assert_eq!(texts[0]["content"], texts[1]["content"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_say_how_and_why_they_ended() {
    let app = App::language().await;
    let end = async |fields: Value| {
        let answer = app.post("/completion", &native(fields)).await.json();
        (answer["stop_type"].clone(), answer["content"].clone())
    };
    assert_eq!(end(json!({})).await.0, "limit");
    let grammar = json!({"grammar": "root ::= \"ab\"", "ignore_eos": false});
    assert_eq!(end(grammar).await, (json!("eos"), json!("ab")));
    let schema = json!({"json_schema": {"enum": [7, 42]}, "ignore_eos": false, "n_predict": 20});
    let (stop_type, content) = end(schema).await;
    assert!(stop_type == "eos" && (content == "7" || content == "42"), "{content}");
    let line = json!({"grammar": "root ::= \"\\n\" \"a\"", "ignore_eos": false});
    let answer = app.post("/completion", &native(line)).await.json();
    assert_eq!((&answer["has_new_line"], &answer["truncated"]), (&json!(true), &json!(false)));
    // The whole context: neither the limit nor an end token.
    let full = native(json!({"n_predict": -1}));
    let answer = app.post("/completion", &full).await.json();
    assert_eq!((&answer["stop_type"], &answer["truncated"]), (&json!("limit"), &json!(true)));
    let n_ctx = app.get("/props").await.json()["default_generation_settings"]["n_ctx"].clone();
    let sum =
        answer["tokens_evaluated"].as_u64().unwrap() + answer["tokens_predicted"].as_u64().unwrap();
    assert!(sum.abs_diff(n_ctx.as_u64().unwrap()) <= 1, "{sum} tokens in a context of {n_ctx}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_are_echoed_under_their_names() {
    let app = App::language().await;
    let given = json!({
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.25,
        "min_p": 0.125,
        "typical_p": 0.75,
        "repeat_last_n": 16,
        "repeat_penalty": 1.5,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
        "mirostat_tau": 4.0,
        "seed": 11,
        "n_predict": 3,
        "stop": ["zz"],
        "n_probs": 2,
        "samplers": ["top_k", "temperature"],
    });
    let answer =
        app.post("/completion", &with(json!({"prompt": "ab"}), given.clone())).await.json();
    let settings = &answer["generation_settings"];
    for (name, value) in given.as_object().unwrap() {
        let name = if name == "typical_p" { "typ_p" } else { name };
        assert_eq!(&settings[name], value, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn probabilities_of_tokens_have_their_fields() {
    let app = App::language().await;
    let fields = json!({"n_probs": 3, "return_tokens": true});
    let answer = app.post("/completion", &native(fields)).await.json();
    let entries = answer["completion_probabilities"].as_array().unwrap();
    let ids: Vec<_> = entries.iter().map(|entry| entry["id"].clone()).collect();
    assert_eq!(json!(ids), answer["tokens"]);
    for entry in entries {
        assert_eq!(keys(entry), ["id", "token", "bytes", "logprob", "top_logprobs"]);
        assert_eq!(entry["top_logprobs"].as_array().unwrap().len(), 3);
        // Greedy: the token is the most probable one.
        assert_eq!(entry["top_logprobs"][0]["logprob"], entry["logprob"]);
    }
    // Biases by text and by number.
    let banned = answer["tokens"][0].as_u64().unwrap();
    for bias in
        [json!({banned.to_string(): false}), json!({entries[0]["token"].as_str().unwrap(): -100})]
    {
        let fields = json!({"logit_bias": bias, "return_tokens": true});
        let other = app.post("/completion", &native(fields)).await.json();
        assert_ne!(other["tokens"][0], banned, "{bias}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cache_is_used_unless_it_is_refused() {
    let app = App::language().await;
    let prompt = "the cat sat on the mat and the dog in the other";
    let cached = async |fields: Value| {
        let body = native(with(json!({"prompt": prompt}), fields));
        let answer = app.post("/completion", &body).await.json();
        let timings = &answer["timings"];
        let sum = timings["cache_n"].as_u64().unwrap() + timings["prompt_n"].as_u64().unwrap();
        assert_eq!(answer["tokens_evaluated"], sum);
        assert_eq!(answer["tokens_cached"], sum + 3);
        timings["cache_n"].as_u64().unwrap()
    };
    assert_eq!(cached(json!({})).await, 0);
    assert!(cached(json!({})).await > 0);
    assert_eq!(cached(json!({"cache_prompt": false})).await, 0);
    assert_eq!(cached(json!({"cache_salt": "of another user"})).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_report_progress_and_timings() {
    let app = App::language().await;
    let fields = json!({"return_progress": true, "timings_per_token": true});
    let events = native_events(&app, fields.clone()).await;
    let is_progress = |event: &&Value| event.get("prompt_progress").is_some();
    let progress = &events.iter().rfind(is_progress).unwrap()["prompt_progress"];
    assert_eq!(keys(progress), ["total", "cache", "processed", "time_ms"]);
    assert_eq!(progress["processed"], progress["total"]);
    let texts = events.iter().filter(|event| event["content"] != "");
    assert!(texts.clone().count() > 0);
    assert!(texts.into_iter().all(|event| event["timings"]["predicted_n"].is_u64()));
    let plain = native_events(&app, json!({})).await;
    assert!(plain.iter().all(|event| event.get("prompt_progress").is_none()));
    assert!(plain.split_last().unwrap().1.iter().all(|event| event.get("timings").is_none()));

    let body = with(with(chat(), fields), json!({"stream": true}));
    let events = chunks(&app.post("/v1/chat/completions", &body).await);
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    let progress = &events.iter().rfind(is_progress).unwrap()["prompt_progress"];
    assert_eq!(progress["processed"], progress["total"]);
    let fingerprint = concat!("stonechat-", env!("CARGO_PKG_VERSION"));
    assert!(events.iter().all(|event| event["system_fingerprint"] == fingerprint));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_text_ends_after_its_time() {
    let app = one_slot().await;
    let grammar = json!({"grammar": "root ::= \"\\n\" \"a\"+", "t_max_predict_ms": 1});
    let answer = app.post("/completion", &with(endless(), grammar)).await.json();
    assert_eq!((&answer["stop_type"], &answer["has_new_line"]), (&json!("limit"), &json!(true)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chats_continue_answers_and_follow_schemas() {
    let mut options = options();
    options.engine.chat_template = Some("chatml".to_owned());
    let app = App::new(options).await;
    let turns = json!([
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": "the cat"},
    ]);
    let prompt = app.post("/apply-template", &json!({"messages": turns})).await.json();
    assert!(prompt["prompt"].as_str().unwrap().ends_with("the cat"), "{prompt}");
    let answer = app.post("/v1/chat/completions", &with(chat(), json!({"messages": turns}))).await;
    let counted =
        app.post("/v1/chat/completions/input_tokens", &json!({"messages": turns})).await.json();
    assert_eq!(answer.json()["usage"]["prompt_tokens"], counted["input_tokens"]);
    let both = json!({
        "messages": turns, "continue_final_message": true, "add_generation_prompt": true,
    });
    let answer = app.post("/v1/chat/completions", &with(chat(), both)).await;
    assert_eq!((answer.status, answer.kind().as_str()), (400, "invalid_request_error"));

    let schema = json!({"enum": [7, 42]});
    for format in [
        json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}),
        json!({"type": "json_object", "schema": schema}),
    ] {
        let body = with(chat(), json!({"response_format": format, "ignore_eos": false}));
        let answer = app.post("/v1/chat/completions", &body).await.json();
        let content = answer["choices"][0]["message"]["content"].as_str().unwrap();
        assert!(content == "7" || content == "42", "{answer}");
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vectors_are_pooled_or_one_a_token() {
    let app = App::language().await;
    let tokens = app.post("/tokenize", &json!({"content": "ab cd"})).await.json()["tokens"].clone();
    let n = tokens.as_array().unwrap().len();
    let answer = app.post("/v1/embeddings", &json!({"input": [tokens, tokens]})).await.json();
    assert_eq!(answer["usage"], json!({"prompt_tokens": 2 * n, "total_tokens": 2 * n}));
    let text = app.post("/v1/embeddings", &json!({"input": "ab cd"})).await.json();
    assert_eq!(answer["data"][0]["object"], "embedding");
    let first = |answer: &Value| -> Vec<f32> {
        serde_json::from_value(answer["data"][0]["embedding"].clone()).unwrap()
    };
    let distance: f32 = first(&answer).iter().zip(first(&text)).map(|(a, b)| (a - b).abs()).sum();
    assert!(distance < 1e-4, "{distance}");
    let norm = async |p: i32| {
        let body = json!({"content": "ab cd", "embd_normalize": p});
        let answer = app.post("/embedding", &body).await.json();
        let row: Vec<f32> = serde_json::from_value(answer[0]["embedding"][0].clone()).unwrap();
        row.iter().map(|x| x * x).sum::<f32>().sqrt()
    };
    assert!((norm(2).await - 1.0).abs() < 1e-5);
    assert!((norm(-1).await - 1.0).abs() > 1e-3, "the vector has length one by itself");

    let app = App::new(ServerOptions { pooling: Some(Pooling::None), ..options() }).await;
    let answer = app.post("/embedding", &json!({"content": "ab cd"})).await.json();
    assert_eq!(answer[0]["embedding"].as_array().unwrap().len(), n);
    let answer = app.post("/v1/embeddings", &json!({"input": "ab cd"})).await;
    assert_eq!((answer.status, answer.kind().as_str()), (400, "invalid_request_error"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_of_special_tokens_are_parsed_by_default() {
    let app = App::language().await;
    let tokens = async |fields: Value| {
        let body = with(json!({"content": "<s>ab"}), fields);
        app.post("/tokenize", &body).await.json()["tokens"].clone()
    };
    let parsed = tokens(json!({})).await;
    assert_eq!((parsed.as_array().unwrap().len(), &parsed[0]), (3, &json!(0)));
    assert_ne!(tokens(json!({"parse_special": false})).await[0], 0);
}

/// The tiny model with three tokens for infilling in its header.
fn infilling(folder: &tempfile::TempDir) -> ModelOption {
    let file = with_metadata(|metadata| {
        for (role, id) in [("pre", 30u32), ("suf", 31), ("mid", 32)] {
            metadata.set(format!("tokenizer.ggml.fim_{role}_token_id"), id);
        }
    });
    let path = folder.path().join("infill.gguf");
    std::fs::write(&path, file).unwrap();
    ModelOption { name: "infill".to_owned(), path }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn infill_puts_the_gap_after_both_texts() {
    let folder = tempfile::tempdir().unwrap();
    let models = vec![infilling(&folder)];
    let app = App::new(ServerOptions { models, ..ServerOptions::default() }).await;
    let tokens = async |text: &str| {
        let answer = app.post("/tokenize", &json!({"content": text})).await.json();
        answer["tokens"].as_array().unwrap().len()
    };
    let body = with(
        json!({
            "input_prefix": "ab",
            "input_suffix": "cd",
            "prompt": "e",
            "input_extra": [{"filename": "f.rs", "text": "the cat"}],
            "n_predict": 4,
        }),
        greedy(),
    );
    let answer = app.post("/infill", &body).await.json();
    // Tokens 30 to 32 are digits of this vocabulary.
    assert_eq!(answer["prompt"], "0f.rs\nthe cat\nab1cd2e");
    let n = tokens("f.rs\nthe cat\nab").await + tokens("cd").await + tokens("e").await + 3;
    assert_eq!((&answer["tokens_evaluated"], &answer["tokens_predicted"]), (&json!(n), &json!(4)));
    let prompt = json!({"prompt": "0f.rs\nthe cat\nab1cd2e"});
    let plain = app.post("/completion", &native(prompt)).await.json();
    assert_eq!(answer["content"], plain["content"]);
    let answer = app.post("/infill", &json!({"input_prefix": "ab"})).await;
    assert_eq!((answer.status, answer.kind().as_str()), (400, "invalid_request_error"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_are_saved_restored_and_erased() {
    let folder = tempfile::tempdir().unwrap();
    let slot_save_path = Some(folder.path().to_owned());
    let app = App::new(ServerOptions { slot_save_path, ..options() }).await;
    let prompt = json!({"prompt": "the cat sat on the mat and the dog in the other", "id_slot": 0});
    let answer = app.post("/completion", &native(prompt)).await.json();
    let n_prompt = answer["tokens_evaluated"].as_u64().unwrap();
    let act = async |action: &str, body: Value| {
        app.post(&format!("/slots/0?action={action}"), &body).await
    };
    let file = json!({"filename": "a.bin"});
    let saved = act("save", file.clone()).await.json();
    assert_eq!(keys(&saved), ["id_slot", "filename", "n_saved", "n_written", "timings"]);
    assert_eq!((&saved["id_slot"], &saved["filename"]), (&json!(0), &json!("a.bin")));
    assert!(saved["n_saved"].as_u64().unwrap() >= n_prompt, "{saved}");
    assert!(saved["timings"]["save_ms"].as_f64().unwrap() >= 0.0);
    let written = std::fs::metadata(folder.path().join("a.bin")).unwrap().len();
    assert_eq!(saved["n_written"], written);
    let erased = act("erase", json!({})).await.json();
    assert_eq!(keys(&erased), ["id_slot", "n_erased"]);
    assert!(erased["n_erased"].as_u64().unwrap() > 0, "{erased}");
    let restored = act("restore", file).await.json();
    assert_eq!(keys(&restored), ["id_slot", "filename", "n_restored", "n_read", "timings"]);
    assert_eq!(
        (&restored["n_restored"], &restored["n_read"]),
        (&saved["n_saved"], &json!(written))
    );
    assert!(restored["timings"]["restore_ms"].as_f64().unwrap() >= 0.0);

    for (action, body) in [
        ("save", json!({})),
        ("save", json!({"filename": "../a.bin"})),
        ("dance", json!({"filename": "a.bin"})),
    ] {
        let answer = act(action, body).await;
        assert_eq!((answer.status, answer.kind().as_str()), (400, "invalid_request_error"));
    }
    for slot in ["99", "x"] {
        let answer = app.post(&format!("/slots/{slot}?action=erase"), &json!({})).await;
        assert_eq!(answer.status, 400, "{slot}: {}", answer.text);
    }
    let answer = act("restore", json!({"filename": "none.bin"})).await;
    assert_eq!(answer.status, 400, "{}", answer.text);
    assert!(!answer.text.contains(folder.path().to_str().unwrap()), "{}", answer.text);

    let app = App::new(ServerOptions { slots: false, ..options() }).await;
    for answer in [app.get("/slots").await, app.post("/slots/0?action=erase", &json!({})).await] {
        assert_eq!((answer.status, answer.kind().as_str()), (501, "not_supported_error"));
    }
}

/// Waits until `/slots?fail_on_no_slot=1` has a status.
async fn wait_for_slots(app: &App, status: u16) {
    let asks = async {
        while app.get("/slots?fail_on_no_slot=1").await.status != status {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(60), asks).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_slot_is_listed_with_its_request() {
    let app = one_slot().await;
    assert_eq!(app.get("/props").await.json()["total_slots"], 1);
    let slots = app.get("/slots").await.json();
    assert_eq!((slots.as_array().unwrap().len(), &slots[0]["id_task"]), (1, &json!(-1)));
    assert_eq!(slots[0]["is_processing"], false);
    let watch = async {
        wait_for_slots(&app, 503).await;
        app.get("/slots").await.json()
    };
    let body = with(endless(), json!({"n_predict": 1_000_000}));
    let slots = tokio::select! {
        answer = app.post("/completion", &body) => panic!("{answer:?}"),
        slots = watch => slots,
    };
    let slot = &slots[0];
    let fields = [
        "id",
        "n_ctx",
        "speculative",
        "is_processing",
        "id_task",
        "n_prompt_tokens",
        "n_prompt_tokens_processed",
        "n_prompt_tokens_cache",
        "next_token",
    ];
    assert_eq!(keys(slot), fields);
    assert_eq!((&slot["is_processing"], &slot["n_prompt_tokens"]), (&json!(true), &json!(2)));
    assert!(slot["id_task"].as_i64().unwrap() >= 0, "{slot}");
    let next = &slot["next_token"][0];
    assert_eq!(keys(next), ["has_next_token", "n_remain", "n_decoded"]);
    assert!(next["n_remain"].as_i64().unwrap() > 0, "{slot}");
    // The client has gone.
    wait_for_slots(&app, 200).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_waits_has_pings() {
    let mut options = ServerOptions { context_shift: true, ..options() };
    options.engine.n_parallel = 1;
    options.sse_ping_interval = Some(Duration::from_millis(5));
    let app = App::new(options).await;
    let (sender, is_waiting) = oneshot::channel();
    let running = async {
        let many_pings = async {
            is_waiting.await.unwrap();
            sleep(Duration::from_millis(300)).await;
        };
        let body = endless();
        tokio::select! {
            answer = app.post("/completion", &body) => panic!("{answer:?}"),
            () = many_pings => {}
        }
    };
    let waiting = async {
        wait_for_slots(&app, 503).await;
        sender.send(()).unwrap();
        app.post("/v1/chat/completions", &with(chat(), json!({"stream": true}))).await
    };
    let ((), answer) = tokio::join!(running, waiting);
    let first_data = answer.text.find("data: ").unwrap();
    assert!(answer.text[..first_data].contains(":\n\n"), "{}", answer.text);
    assert!(answer.text.ends_with("data: [DONE]\n\n"), "{}", answer.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_are_the_sums_of_the_answers() {
    let app = App::new(ServerOptions { metrics: true, ..options() }).await;
    let (mut prompt, mut cached, mut predicted) = (0, 0, 0);
    for text in ["the cat sat on the mat", "the cat sat on the mat", "ab"] {
        let answer = app.post("/completion", &native(json!({"prompt": text}))).await.json();
        let count = |name: &str| answer["timings"][name].as_u64().unwrap();
        prompt += count("prompt_n");
        cached += count("cache_n");
        predicted += count("predicted_n");
    }
    assert!(cached > 0);
    let text = app.get("/metrics").await.text;
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("llamacpp:{name} ")));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse::<f64>().unwrap()
    };
    for (name, expected) in [
        ("prompt_tokens_total", prompt),
        ("prompt_tokens_cached_total", cached),
        ("tokens_predicted_total", predicted),
        ("requests_processing", 0),
        ("requests_deferred", 0),
    ] {
        assert!((value(name) - expected as f64).abs() < 0.5, "{name}: {text}");
    }
    for name in [
        "prompt_seconds_total",
        "tokens_predicted_seconds_total",
        "n_decode_total",
        "n_tokens_max",
        "prompt_tokens_seconds",
        "predicted_tokens_seconds",
        "n_busy_slots_per_decode",
    ] {
        assert!(value(name) > 0.0, "{name}: {text}");
    }
    for name in ["num_drafts", "num_draft_tokens", "num_accepted_tokens"] {
        assert!(value(&format!("spec_decode_{name}_total")).abs() < 0.5, "{name}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn props_have_the_fields_and_defaults_of_llama_server() {
    let props = App::language().await.get("/props").await.json();
    for field in [
        "default_generation_settings",
        "total_slots",
        "model_alias",
        "model_ftype",
        "model_path",
        "modalities",
        "endpoint_slots",
        "endpoint_props",
        "endpoint_metrics",
        "ui",
        "chat_template",
        "chat_template_caps",
        "bos_token",
        "eos_token",
        "build_info",
        "is_sleeping",
        "cors_proxy_enabled",
    ] {
        assert!(props.get(field).is_some(), "{field} of {props}");
    }
    assert_eq!((&props["bos_token"], &props["eos_token"]), (&json!("<s>"), &json!("</s>")));
    assert_eq!((&props["endpoint_slots"], &props["endpoint_props"]), (&json!(true), &json!(false)));
    assert_eq!(props["modalities"], json!({"vision": false, "video": false, "audio": false}));
    let params = &props["default_generation_settings"]["params"];
    for (name, value) in [
        ("n_predict", json!(-1)),
        ("repeat_last_n", json!(64)),
        ("mirostat", json!(0)),
        ("n_probs", json!(0)),
    ] {
        assert_eq!(params[name], value, "{name}");
    }
}
