//! Ollama's routes, on a model of random weights.

use axum::body::Body;
use axum::http::{Method, Request};
use serde_json::{Value, json};
use stonechat_server::{ModelOption, ModelStatus, ServerOptions};

use crate::support::{Answer, App, language, speech, with_metadata};
use crate::text::with;

fn chat() -> Value {
    let options = json!({"temperature": 0, "num_predict": 8, "ignore_eos": true});
    json!({"model": "m", "messages": [{"role": "user", "content": "ab"}], "options": options})
}

/// Lines of a stream.
#[track_caller]
fn lines(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.header("content-type"), "application/x-ndjson");
    answer.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

async fn status(app: &App) -> ModelStatus {
    app.state().models().list().await[0].status
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_is_a_stream_of_lines_that_ends_with_done() {
    let app = App::language().await;
    let lines = lines(&app.post("/api/chat", &chat()).await);
    let (last, parts) = lines.split_last().unwrap();
    let texts = parts.iter().map(|line| line["message"]["content"].as_str());
    let text: String = texts.collect::<Option<_>>().unwrap();
    assert!(parts.iter().all(|line| line["done"] == false && line.get("done_reason").is_none()));
    assert_eq!((&last["done"], &last["done_reason"]), (&json!(true), &json!("length")));
    assert_eq!((&last["eval_count"], &last["message"]["content"]), (&json!(8), &json!("")));
    for field in ["total_duration", "prompt_eval_count", "prompt_eval_duration"] {
        assert!(last[field].as_u64().unwrap() > 0, "{field}");
    }
    let whole = app.post("/api/chat", &with(chat(), json!({"stream": false}))).await.json();
    assert_eq!(whole["message"], json!({"role": "assistant", "content": text}));
    assert_eq!((&whole["done"], &whole["model"]), (&json!(true), &json!("m")));
}

/// Home Assistant: `num_ctx` as a float, `keep_alive` as the integer -1, a schema as the format.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_of_home_assistant_is_answered() {
    let app = App::language().await;
    let options = json!({"num_ctx": 8192.0, "num_predict": 4.0});
    let body = with(chat(), json!({"options": options, "keep_alive": -1, "think": false}));
    let lines = lines(&app.post("/api/chat", &body).await);
    assert_eq!(lines.last().unwrap()["done"], true);
    assert_eq!(status(&app).await, ModelStatus::Loaded);
}

#[tokio::test(flavor = "multi_thread")]
async fn models_have_names_with_and_without_a_tag() {
    let app = App::language().await;
    for name in ["m", "m:latest"] {
        let answer = app.post("/api/chat", &with(chat(), json!({"model": name}))).await;
        assert_eq!(answer.status, 200, "{name}");
    }
    let answer = app.post("/api/chat", &with(chat(), json!({"model": "x"}))).await;
    assert_eq!((answer.status, answer.json()), (404, json!({"error": "model 'x' not found"})));
}

#[tokio::test(flavor = "multi_thread")]
async fn models_are_loaded_and_unloaded_without_a_text() {
    let app = App::closed(ServerOptions { models: vec![language("m")], ..Default::default() });
    app.open().await;
    let body = json!({"model": "m", "messages": [], "keep_alive": 0});
    let unloaded = lines(&app.post("/api/chat", &body).await);
    assert_eq!(
        (&unloaded[0]["done"], &unloaded[0]["done_reason"]),
        (&json!(true), &json!("unload"))
    );
    assert_ne!(status(&app).await, ModelStatus::Loaded);
    assert_eq!(app.get("/api/ps").await.json(), json!({"models": []}));
    let body = json!({"model": "m", "stream": false});
    let loaded = app.post("/api/generate", &body).await.json();
    assert_eq!((&loaded["response"], &loaded["done_reason"]), (&json!(""), &json!("load")));
    assert_eq!(status(&app).await, ModelStatus::Loaded);
    let running = app.get("/api/ps").await.json();
    assert_eq!(running["models"][0]["model"], "m");
    assert!(running["models"][0]["context_length"].as_u64().unwrap() > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_completion_continues_its_context() {
    let app = App::language().await;
    let options = chat()["options"].clone();
    let body = json!({"model": "m", "prompt": "ab", "stream": false, "options": options});
    let first = app.post("/api/generate", &body).await.json();
    assert!(!first["response"].as_str().unwrap().is_empty());
    let context = first["context"].as_array().unwrap();
    let count = |answer: &Value| answer["prompt_eval_count"].as_u64().unwrap();
    assert_eq!(context.len() as u64, count(&first) + 8);
    let next = with(body.clone(), json!({"context": context}));
    let next = app.post("/api/generate", &next).await.json();
    assert_eq!(count(&next), context.len() as u64 + count(&first));
    let raw = app.post("/api/generate", &with(body.clone(), json!({"raw": true}))).await.json();
    assert!(count(&raw) < count(&first) && raw.get("context").is_none(), "{raw}");
    let wrong = app.post("/api/generate", &with(body.clone(), json!({"context": [999_999]}))).await;
    assert_eq!(wrong.status, 400);
    let image = app.post("/api/generate", &with(body, json!({"images": ["aa"]}))).await;
    assert!(image.json()["error"].as_str().unwrap().contains("needs a model that sees"));
}

/// [LocalAI 9780](https://github.com/mudler/LocalAI/pull/9780).
#[tokio::test(flavor = "multi_thread")]
async fn embeddings_are_of_inputs_or_of_a_prompt() {
    let app = App::language().await;
    let one = app.post("/api/embed", &json!({"model": "m", "prompt": "ab"})).await.json();
    let two = app.post("/api/embed", &json!({"model": "m", "input": ["ab", "ba"]})).await.json();
    assert_eq!(two["embeddings"].as_array().unwrap().len(), 2);
    assert_eq!(one["embeddings"][0], two["embeddings"][0]);
    assert!(two["prompt_eval_count"].as_u64().unwrap() > 0);
    let old = app.post("/api/embeddings", &json!({"model": "m", "prompt": "ab"})).await.json();
    assert_eq!(old["embedding"], one["embeddings"][0]);
    let none = app.post("/api/embed", &json!({"model": "m"})).await.json();
    assert_eq!(none["embeddings"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_have_the_log_probabilities_of_their_tokens() {
    let app = App::language().await;
    let asked = json!({"logprobs": true, "top_logprobs": 2});
    let lines = lines(&app.post("/api/chat", &with(chat(), asked.clone())).await);
    let tokens = lines.iter().filter_map(|line| line.get("logprobs")?.as_array()).flatten();
    let tokens: Vec<&Value> = tokens.collect();
    assert_eq!(tokens.len(), 8);
    for token in &tokens {
        assert_eq!(token["top_logprobs"].as_array().unwrap().len(), 2);
        assert!(token["logprob"].as_f64().unwrap() <= 0.0 && token["bytes"].is_array(), "{token}");
    }
    let whole = json!({"stream": false});
    let answer = with(with(chat(), asked.clone()), whole.clone());
    let answer = app.post("/api/chat", &answer).await.json();
    let text = |token: &Value| token["token"].as_str().unwrap().to_owned();
    let of_whole: Vec<String> = answer["logprobs"].as_array().unwrap().iter().map(text).collect();
    assert_eq!(of_whole, tokens.into_iter().map(text).collect::<Vec<_>>());
    let options = chat()["options"].clone();
    let body = json!({"model": "m", "prompt": "ab", "options": options});
    let generated = app.post("/api/generate", &with(with(body, asked), whole.clone())).await.json();
    assert_eq!(generated["logprobs"].as_array().unwrap().len(), 8);
    let none = app.post("/api/chat", &with(chat(), whole)).await.json();
    assert!(none.get("logprobs").is_none(), "{none}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_of_embeddings_is_listed_as_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("e.gguf");
    let file = with_metadata(|metadata| metadata.set("llama.pooling_type", 1_u32));
    std::fs::write(&path, file).unwrap();
    let models = vec![ModelOption { name: "e".to_owned(), path }, language("m")];
    let app = App::new(ServerOptions { models, ..ServerOptions::default() }).await;
    let tags = app.get("/api/tags").await.json();
    let capabilities = |index: usize| tags["models"][index]["capabilities"].clone();
    assert_eq!((capabilities(0), capabilities(1)), (json!(["embedding"]), json!(["completion"])));
    let show = app.post("/api/show", &json!({"model": "e"})).await.json();
    assert_eq!(show["capabilities"], json!(["embedding"]));
}

/// VS Code splits the version by dots, lists the tags, and reads `model_info` and `capabilities`.
#[tokio::test(flavor = "multi_thread")]
async fn vs_code_finds_models() {
    let models = vec![language("m"), speech("s")];
    let app = App::new(ServerOptions { models, ..ServerOptions::default() }).await;
    let version = app.get("/api/version").await.json();
    let numbers =
        version["version"].as_str().unwrap().split('.').map(|n| n.parse::<u32>().unwrap());
    assert!(numbers.collect::<Vec<_>>() >= vec![0, 12, 0], "{version}");
    let tags = app.get("/api/tags").await.json();
    assert_eq!(tags["models"][0]["model"], "m");
    assert_eq!(tags["models"][0]["digest"].as_str().unwrap().len(), 64);
    assert_eq!(tags["models"][1]["capabilities"][0], "audio");
    let show = app.post("/api/show", &json!({"model": "m"})).await.json();
    let info = &show["model_info"];
    assert_eq!(info["general.architecture"], "llama");
    assert_eq!(info["general.basename"], "m");
    assert!(info["llama.context_length"].as_u64().unwrap() > 0);
    assert_eq!(show["capabilities"][0], "completion");
    assert_eq!(show["details"]["family"], "llama");
    let unknown = app.post("/api/show", &json!({"name": "x"})).await;
    assert_eq!(
        (unknown.status, unknown.json()["error"].clone()),
        (404, json!("model 'x' not found"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_root_tells_clients_that_it_runs() {
    let app = App::language().await;
    assert_eq!(app.get("/").await.text, "Ollama is running");
    let page = Request::get("/").header("accept", "text/html,*/*").body(Body::empty());
    assert!(app.send(page.unwrap()).await.text.contains("<html"));
    // The worker of the page fetches it for offline use.
    let worker = Request::get("/").header("accept", "*/*").header("sec-fetch-mode", "cors");
    assert!(app.send(worker.body(Body::empty()).unwrap()).await.text.contains("<html"));
}

/// Status of the removal of a model.
async fn remove(app: &App, name: &str) -> u16 {
    let request = Request::builder().method(Method::DELETE).uri("/api/delete");
    let body = Body::from(json!({"model": name}).to_string());
    let request = request.header("content-type", "application/json").body(body).unwrap();
    app.send(request).await.status
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_change_models_with_a_flag_alone() {
    let app = App::language().await;
    let refused = app.post("/api/pull", &json!({"model": "base"})).await;
    let text = refused.json()["error"].as_str().unwrap().to_owned();
    assert!(refused.status == 403 && text.contains("--manage-models"), "{text}");
    assert_eq!(remove(&app, "m").await, 403);
    for route in ["copy", "create", "push"] {
        let answer = app.post(&format!("/api/{route}"), &json!({})).await;
        assert_eq!(answer.status, 501, "{route}");
    }

    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(crate::support::test_data("golden/llm/llama.gguf"), folder.path().join("t.gguf"))
        .unwrap();
    let app = App::new(ServerOptions {
        models: vec![language("m")],
        installed: Some(stonechat::Models::at(folder.path())),
        manage_models: true,
        ..ServerOptions::default()
    })
    .await;
    assert_eq!(remove(&app, "m").await, 400);
    assert_eq!(remove(&app, "none").await, 404);
    assert_eq!(remove(&app, "t").await, 200);
    assert_eq!(remove(&app, "t").await, 404);
    assert!(!folder.path().join("t.gguf").exists());
}
