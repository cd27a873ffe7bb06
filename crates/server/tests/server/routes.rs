//! Routes in process, on tiny models of random weights.

use serde_json::{Value, json};
use stonechat_server::ServerOptions;

use crate::support::{App, bad_json, language, speech};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_is_503_while_the_models_load() {
    let app =
        App::closed(ServerOptions { models: vec![language("m")], ..ServerOptions::default() });
    let loading = json!({"error": {
        "code": 503, "message": "Loading model", "type": "unavailable_error",
    }});
    for path in ["/health", "/v1/health", "/props"] {
        let answer = app.get(path).await;
        assert_eq!((answer.status, &answer.json()), (503, &loading), "{path}");
    }
    let answer = app.post("/tokenize", &json!({"content": "ab"})).await;
    assert_eq!(answer.status, 503);
    // The list of models needs none of them.
    let answer = app.get("/v1/models").await;
    assert_eq!(answer.json()["data"][0]["status"]["value"], "unloaded");
    app.open().await;
    for path in ["/health", "/v1/health"] {
        let answer = app.get(path).await;
        assert_eq!((answer.status, answer.json()), (200, json!({"status": "ok"})), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_list_of_models_has_both_shapes() {
    let options = ServerOptions {
        models: vec![language("chat-model"), speech("ears")],
        aliases: vec!["gpt-4".to_owned()],
        tags: vec!["tiny".to_owned()],
        ..ServerOptions::default()
    };
    let app = App::new(options).await;
    let answer = app.get("/v1/models").await.json();
    assert_eq!(answer, app.get("/models").await.json());
    assert_eq!(answer["object"], "list");
    let first = &answer["data"][0];
    assert_eq!((&first["id"], &first["object"]), (&json!("gpt-4"), &json!("model")));
    assert_eq!((&first["aliases"], &first["tags"]), (&json!(["gpt-4"]), &json!(["tiny"])));
    assert_eq!(first["status"]["value"], "loaded");
    assert!(first["created"].as_u64().unwrap() > 1_600_000_000);
    for field in ["vocab_type", "n_vocab", "n_ctx", "n_ctx_train", "n_embd", "n_params", "size"] {
        assert!(first["meta"][field].is_u64(), "{field}: {first}");
    }
    // Without a context size, that of training up to 16,384.
    let (n_ctx, of_training) = (&first["meta"]["n_ctx"], &first["meta"]["n_ctx_train"]);
    assert_eq!(n_ctx.as_u64(), of_training.as_u64().map(|n| n.min(16_384)));
    assert_eq!(answer["data"][1]["task"], "automatic-speech-recognition");
    assert_eq!(answer["models"][0]["capabilities"], json!(["completion"]));
    assert_eq!(answer["models"][1]["name"], "ears");
    for (i, family) in ["llama", "whisper"].into_iter().enumerate() {
        let model = &answer["models"][i];
        let details = &model["details"];
        assert_eq!((&details["format"], &details["family"]), (&"gguf".into(), &family.into()));
        assert_eq!(details["families"], json!([family]));
        assert!(model.get("digest").is_none(), "{model}");
        let modified = model["modified_at"].as_str().unwrap();
        assert!(modified.starts_with("20") && modified.ends_with('Z'), "{modified}");
    }
    let file = std::fs::metadata(language("").path).unwrap();
    assert_eq!(answer["models"][0]["size"], file.len());
    for name in ["gpt-4", "chat-model"] {
        assert_eq!(app.get(&format!("/v1/models/{name}")).await.json()["id"], "gpt-4");
    }
    let answer = app.get("/v1/models/gpt-5").await;
    assert_eq!((answer.status, answer.kind()), (404, "not_found_error".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_model_answers_to_any_name() {
    let app = App::new(ServerOptions {
        models: vec![language("only"), speech("ears")],
        ..ServerOptions::default()
    })
    .await;
    for model in [json!("only"), json!("gpt-4o"), json!(""), Value::Null] {
        let answer = app.post("/tokenize", &json!({"model": model, "content": "ab"})).await;
        assert_eq!(answer.status, 200, "{model}: {}", answer.text);
    }
    assert!(app.state().speech(Some("whisper-1")).await.is_ok());
    let answer = app.post("/tokenize", &json!({"model": "ears", "content": "ab"})).await;
    let expected =
        "`model`: expected the name of a language model, got `ears`, which is a speech model";
    assert_eq!((answer.status, answer.message().as_str()), (400, expected));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_models_have_names() {
    let app = App::new(ServerOptions {
        models: vec![language("first"), language("second")],
        ..ServerOptions::default()
    })
    .await;
    let tokenize =
        async |model: &str| app.post("/tokenize", &json!({"model": model, "content": "ab"})).await;
    assert_eq!(tokenize("second").await.status, 200);
    let answer = tokenize("third").await;
    let expected = "model `third` not found: expected one of first, second";
    assert_eq!((answer.status, answer.message().as_str()), (404, expected));
    let answer = app.post("/tokenize", &json!({"content": "ab"})).await;
    assert_eq!(
        (answer.status, answer.message().as_str()),
        (400, "`model`: expected one of first, second, got none")
    );
    let error = app.state().speech(None).await.unwrap_err();
    assert_eq!(error.status(), 501);
    assert!(error.message().contains("no speech model"), "{}", error.message());
    assert_eq!(app.get("/props?model=second").await.json()["model_alias"], "second");
    assert_eq!(app.get("/props?model=third").await.status, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn texts_are_tokenized_and_back() {
    let app = App::language().await;
    let answer = app.post("/tokenize", &json!({"content": "abba"})).await.json();
    let tokens = answer["tokens"].as_array().unwrap().clone();
    assert!(!tokens.is_empty());
    let answer = app.post("/detokenize", &json!({"tokens": tokens})).await;
    assert_eq!(answer.json(), json!({"content": "abba"}));

    let body = json!({"content": "abba", "with_pieces": true});
    let pieces = app.post("/tokenize", &body).await.json();
    let pieces = pieces["tokens"].as_array().unwrap();
    assert_eq!(pieces.iter().map(|piece| piece["id"].clone()).collect::<Vec<_>>(), tokens);
    let text: String = pieces.iter().map(|piece| piece["piece"].as_str().unwrap()).collect();
    assert_eq!(text.trim_start(), "abba");

    let special = app.post("/tokenize", &json!({"content": "abba", "add_special": true})).await;
    let info = app.state().language(None).await.unwrap();
    let bos =
        info.info().model.tokenizer().bos().filter(|_| info.info().model.tokenizer().adds_bos());
    let n = special.json()["tokens"].as_array().unwrap().len();
    assert_eq!(n, tokens.len() + usize::from(bos.is_some()));

    let mixed = json!({"content": ["ab", tokens[0], "ba"]});
    let answer = app.post("/tokenize", &mixed).await.json();
    assert!(answer["tokens"].as_array().unwrap().contains(&tokens[0]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_ids_are_checked() {
    let app = App::language().await;
    let answer = app.post("/detokenize", &json!({"tokens": [1, 4_000_000]})).await;
    assert_eq!(answer.status, 400);
    assert!(answer.message().starts_with("`tokens[1]`: expected a token id below "));
    let answer = app.post("/detokenize", &json!({"tokens": ["a"]})).await;
    assert!(answer.message().starts_with("`tokens[0]`: invalid type: string \"a\""));
    let answer = app.post("/tokenize", &json!({"content": 7})).await;
    assert!(answer.message().contains("expected a string, or a list of strings and token ids"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_template_is_applied_and_its_tokens_counted() {
    let mut options = ServerOptions { models: vec![language("m")], ..ServerOptions::default() };
    options.engine.chat_template = Some("chatml".to_owned());
    let app = App::new(options).await;
    let chat = json!({"messages": [
        {"role": "developer", "content": "x-anthropic-billing-header: a\nBe brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    ]});
    let expected = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n\
                    <|im_start|>assistant\n";
    let answer = app.post("/apply-template", &chat).await;
    assert_eq!(answer.json(), json!({"prompt": expected}));
    let model = app.state().language(None).await.unwrap();
    let n = model.info().model.tokenize_marked_chat(&expected.into()).len();
    for path in ["/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"] {
        let answer = app.post(path, &chat).await;
        let expected = json!({"object": "response.input_tokens", "input_tokens": n});
        assert_eq!(answer.json(), expected, "{path}");
    }
    let answer = app.post("/apply-template", &json!({"messages": []})).await;
    let expected = "`messages`: expected at least one message, got none";
    assert_eq!((answer.status, answer.message().as_str()), (400, expected));
    let answer = app.post("/apply-template", &json!({})).await;
    assert_eq!(answer.status, 400);
    assert!(answer.message().contains("missing field `messages`"), "{}", answer.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn props_describe_the_open_model() {
    let app = App::language().await;
    let props = app.get("/props").await.json();
    let params = &props["default_generation_settings"]["params"];
    assert_eq!((&params["seed"], &params["top_k"]), (&json!(4_294_967_295u32), &json!(40)));
    assert_eq!(params["samplers"][0], "penalties");
    assert!(props["default_generation_settings"]["n_ctx"].as_u64().unwrap() > 0);
    assert_eq!((&props["is_sleeping"], &props["endpoint_metrics"]), (&json!(false), &json!(false)));
    assert!(props["chat_template_caps"]["supports_tools"].is_boolean());
    assert!(props["model_path"].as_str().unwrap().ends_with("llama.gguf"));
    assert!(props["build_info"].as_str().unwrap().starts_with("stonechat "));
    let answer = app.post("/props", &json!({})).await;
    assert_eq!((answer.status, answer.kind()), (501, "not_supported_error".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn adapters_are_answered_honestly() {
    let app = App::language().await;
    assert_eq!(app.get("/lora-adapters").await.json(), json!([]));
    assert_eq!(app.post("/lora-adapters", &json!([])).await.status, 200);
    let answer = app.post("/lora-adapters", &json!([{"id": 0, "scale": 0.5}])).await;
    assert_eq!(answer.status, 501);
    assert!(answer.message().contains("expected an empty list, got 1"), "{}", answer.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_are_off_unless_asked_for() {
    let app = App::language().await;
    let answer = app.get("/metrics").await;
    assert_eq!((answer.status, answer.kind()), (501, "not_supported_error".to_owned()));
    let options = ServerOptions {
        models: vec![language("m")],
        metrics: true,
        models_memory: Some(1 << 30),
        ..ServerOptions::default()
    };
    let app = App::new(options).await;
    app.post("/tokenize", &json!({"content": "ab"})).await;
    app.get("/nothing").await;
    // Errors whose body is written anew for the API of their path, or with the allowed methods.
    assert_eq!(app.post("/v1/messages", &json!({})).await.status, 400);
    assert_eq!(app.post("/api/chat", &json!({})).await.status, 400);
    assert_eq!(app.post("/metrics", &json!({})).await.status, 405);
    let answer = app.get("/metrics").await;
    assert_eq!(answer.status, 200);
    assert!(answer.header("process-start-time-unix").parse::<u64>().unwrap() > 1_600_000_000);
    for line in [
        "llamacpp:prompt_tokens_total 0",
        "stonechat:http_requests_total{method=\"POST\",route=\"/tokenize\",status=\"200\"} 1",
        "stonechat:http_requests_total{method=\"GET\",route=\"unknown\",status=\"404\"} 1",
        "stonechat:http_requests_total{method=\"POST\",route=\"/v1/messages\",status=\"400\"} 1",
        "stonechat:http_requests_total{method=\"POST\",route=\"/api/chat\",status=\"400\"} 1",
        "stonechat:http_requests_total{method=\"POST\",route=\"/metrics\",status=\"405\"} 1",
        "stonechat:models_memory_limit_bytes 1073741824",
    ] {
        assert!(answer.text.lines().any(|found| found == line), "no `{line}` in {}", answer.text);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_document_lists_the_routes() {
    let app = App::language().await;
    let document = app.get("/openapi.json").await.json();
    assert!(document["openapi"].as_str().unwrap().starts_with("3."));
    for path in [
        "/health",
        "/v1/models",
        "/models/load",
        "/tokenize",
        "/detokenize",
        "/apply-template",
        "/props",
        "/lora-adapters",
        "/metrics",
        "/v1/chat/completions/input_tokens",
    ] {
        assert!(document["paths"][path].is_object(), "{path}");
    }
    assert!(document["components"]["schemas"]["ChatBody"]["properties"]["messages"].is_object());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_of_the_framework_have_the_shape_of_the_api() {
    let app = App::language().await;
    let answer = app.get("/nothing").await;
    let expected = json!({"error": {
        "code": 404, "message": "no route GET /nothing: `/openapi.json` lists the paths",
        "type": "not_found_error",
    }});
    assert_eq!((answer.status, answer.json()), (404, expected));
    let answer = app.get("/tokenize").await;
    assert_eq!((answer.status, answer.kind()), (405, "invalid_request_error".to_owned()));
    assert_eq!(answer.header("allow"), "POST");
    for (body, expected) in bad_json() {
        let answer = app.post_text("/tokenize", "application/json", &body).await;
        assert_eq!(answer.status, 400, "{body}");
        assert!(answer.message().contains(expected), "{}", answer.text);
    }
    let answer = app.post_text("/tokenize", "application/xml", "<a/>").await;
    assert_eq!(answer.status, 415);
    let expected = "`Content-Type`: expected application/json, got `application/xml`";
    assert_eq!(answer.message(), expected);
    // curl's default for `-d`.
    let type_of_curl = "application/x-www-form-urlencoded";
    let answer = app.post_text("/tokenize", type_of_curl, "{\"content\": \"a\"}").await;
    assert_eq!(answer.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_has_a_limit() {
    let options = ServerOptions {
        models: vec![language("m")],
        max_body_size: 1000,
        ..ServerOptions::default()
    };
    let app = App::new(options).await;
    let answer = app.post("/tokenize", &json!({"content": "a".repeat(900)})).await;
    assert_eq!(answer.status, 200);
    let answer = app.post("/tokenize", &json!({"content": "a".repeat(1000)})).await;
    assert_eq!(answer.status, 413);
    assert_eq!(answer.message(), "the body is too large: expected at most 1000 bytes");
}
