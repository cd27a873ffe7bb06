//! Time limits of requests: in the queue, while they run, while their model waits for memory.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use stonechat::Models;
use stonechat_server::{EngineOptions, ServerOptions};
use tokio::task::JoinHandle;

use crate::support::{Answer, App, language, test_data};

/// One slot, and texts that never end.
pub(crate) fn options() -> ServerOptions {
    let engine = EngineOptions { n_parallel: 1, ..EngineOptions::default() };
    let models = vec![language("m")];
    ServerOptions { models, engine, context_shift: true, ..ServerOptions::default() }
}

/// A text that ends after a minute.
pub(crate) fn endless() -> Value {
    json!({"prompt": "ab", "temperature": 0, "ignore_eos": true, "timeout_ms": 60_000})
}

/// Starts a text, and waits until it is in the slot.
pub(crate) async fn occupy(app: &Arc<App>) -> JoinHandle<Answer> {
    let task = Arc::clone(app);
    let task = tokio::spawn(async move { task.post("/completion", &endless()).await });
    while app.get("/slots").await.json()[0]["is_processing"] != true {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    task
}

#[track_caller]
fn assert_refused(answer: &Answer, message: &str) {
    assert_eq!((answer.status, answer.kind().as_str()), (503, "unavailable_error"), "{answer:?}");
    assert_eq!(answer.header("retry-after"), "1");
    assert_eq!(answer.message(), message);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_text_ends_with_what_it_has() {
    let app = App::new(options()).await;
    let mut body = endless();
    body["timeout_ms"] = json!(3000);
    let answer = app.post("/completion", &body).await.json();
    assert_eq!(answer["stop_type"], "limit");
    assert!(answer["tokens_predicted"].as_u64() > Some(0), "{answer}");
    let chat = json!({
        "messages": [{"role": "user", "content": "ab"}], "ignore_eos": true, "timeout_ms": 3000,
    });
    let answer = app.post("/v1/chat/completions", &chat).await.json();
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert!(answer["usage"]["completion_tokens"].as_u64() > Some(0), "{answer}");
    body["timeout_ms"] = json!(0);
    let answer = app.post("/completion", &body).await;
    assert_eq!(
        (answer.status, answer.json()["error"]["param"].clone()),
        (400, json!("timeout_ms"))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_waits_too_long_gets_503() {
    const ERROR: &str = "the time of the request passed before its first token";
    let app = Arc::new(App::new(options()).await);
    let running = occupy(&app).await;
    let mut body = endless();
    body["timeout_ms"] = json!(50);
    assert_refused(&app.post("/completion", &body).await, ERROR);
    // A stream waits for its status as long as there is no comment to send.
    body["stream"] = json!(true);
    assert_refused(&app.post("/v1/completions", &body).await, ERROR);
    running.abort();

    let request_timeout = Some(Duration::from_millis(50));
    let app = Arc::new(App::new(ServerOptions { request_timeout, ..options() }).await);
    let running = occupy(&app).await;
    let answer = app.post("/v1/completions", &json!({"prompt": "ab"})).await;
    assert_refused(&answer, ERROR);
    let answer = app.post("/v1/embeddings", &json!({"input": "ab"})).await;
    assert_refused(&answer, "the time of the request passed before its end");
    running.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_without_memory_is_waited_for_in_bounds() {
    const ERROR: &str = "`b` was not open in the time of the request: try again later";
    let folder = tempfile::tempdir().unwrap();
    for name in ["a", "b"] {
        let path = folder.path().join(format!("{name}.gguf"));
        std::fs::copy(test_data("golden/llm/llama.gguf"), path).unwrap();
    }
    // Memory for one of them.
    let options = |load_timeout| ServerOptions {
        installed: Some(Models::at(folder.path())),
        models_memory: Some(1),
        load_timeout,
        ..ServerOptions::default()
    };
    let app = App::new(options(Some(Duration::from_millis(50)))).await;
    // The limit holds for the load as well.
    let busy = loop {
        if let Ok(guard) = app.state().language(Some("a")).await {
            break guard;
        }
    };
    let body = json!({"model": "b", "content": "ab"});
    assert_refused(&app.post("/tokenize", &body).await, ERROR);
    drop(busy);

    let app = App::new(options(None)).await;
    let busy = app.state().language(Some("a")).await.unwrap();
    let text = json!({"model": "b", "prompt": "ab", "n_predict": 2, "timeout_ms": 50});
    assert_refused(&app.post("/completion", &text).await, ERROR);
    drop(busy);
    assert_eq!(app.post("/tokenize", &body).await.status, 200);
}
