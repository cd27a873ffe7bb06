//! Loading, unloading and eviction of models.

use std::time::{Duration, Instant};

use serde_json::json;
use stonechat::Models;
use stonechat_server::{ModelOption, ServerOptions};

use crate::support::{App, language, test_data};

/// Waits until a model of the list has a status.
async fn wait_for(app: &App, model: &str, status: &str) {
    let start = Instant::now();
    loop {
        let found = status_of(app, model).await;
        if found == status {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{model} is {found}, not {status}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn status_of(app: &App, model: &str) -> String {
    let listed = app.get("/v1/models").await.json();
    let data = listed["data"].as_array().unwrap();
    let found = data.iter().find(|each| each["id"] == model);
    let found = found.unwrap_or_else(|| panic!("no {model} in {listed}"));
    found["status"]["value"].as_str().unwrap().to_owned()
}

/// A folder with the same tiny model under some names.
fn folder(names: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in names {
        let path = folder.path().join(format!("{name}.gguf"));
        std::fs::copy(test_data("golden/llm/llama.gguf"), path).unwrap();
    }
    folder
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn installed_models_are_loaded_by_their_names() {
    let folder = folder(&["a", "b"]);
    let installed = Some(Models::at(folder.path()));
    let app = App::new(ServerOptions { installed, ..ServerOptions::default() }).await;
    assert_eq!(app.get("/health").await.status, 200);
    assert_eq!(status_of(&app, "a").await, "unloaded");
    let answer = app.post("/tokenize", &json!({"model": "a", "content": "ab"})).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert_eq!(
        (status_of(&app, "a").await, status_of(&app, "b").await),
        ("loaded".into(), "unloaded".into())
    );
    let answer = app.post("/tokenize", &json!({"model": "c", "content": "ab"})).await;
    assert_eq!(
        (answer.status, answer.message().as_str()),
        (404, "model `c` not found: expected one of a, b")
    );
    // One that is installed while the server runs.
    std::fs::copy(test_data("golden/llm/llama.gguf"), folder.path().join("c.gguf")).unwrap();
    let answer = app.post("/tokenize", &json!({"model": "c", "content": "ab"})).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_model_is_evicted_for_another_and_a_busy_one_is_not() {
    let folder = folder(&["a", "b"]);
    let installed = Some(Models::at(folder.path()));
    // Memory for one of them.
    let options = ServerOptions {
        installed,
        models_memory: Some(1),
        metrics: true,
        ..ServerOptions::default()
    };
    let app = App::new(options).await;
    let busy = app.state().language(Some("a")).await.unwrap();
    let second = app.state().clone();
    let second = tokio::spawn(async move { second.language(Some("b")).await });
    wait_for(&app, "b", "loading").await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(status_of(&app, "a").await, "loaded");
    assert!(!second.is_finished());
    let metrics = app.get("/metrics").await.text;
    assert!(metrics.contains("stonechat:model_load_requests_waiting 1"), "{metrics}");
    drop(busy);
    let guard = second.await.unwrap().unwrap();
    assert_eq!(guard.spec().name, "b");
    assert_eq!(status_of(&app, "a").await, "unloaded");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_requests_share_one_load() {
    let folder = folder(&["a", "b"]);
    let installed = Some(Models::at(folder.path()));
    let app = App::new(ServerOptions { installed, ..ServerOptions::default() }).await;
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let state = app.state().clone();
            tokio::spawn(async move { state.language(Some("a")).await.unwrap() })
        })
        .collect();
    let mut guards = Vec::new();
    for task in tasks {
        guards.push(task.await.unwrap());
    }
    // One engine: all guards are of the same model.
    let first: *const _ = guards[0].info();
    assert!(guards.iter().all(|guard| std::ptr::eq(guard.info(), first)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn models_are_loaded_and_unloaded_by_request() {
    let app = App::new(ServerOptions {
        models: vec![language("a"), language("b")],
        ..ServerOptions::default()
    })
    .await;
    let answer = app.post("/models/load", &json!({"model": "a"})).await;
    assert_eq!((answer.status, answer.message().as_str()), (400, "model `a` is already loaded"));
    let guard = app.state().language(Some("a")).await.unwrap();
    let answer = app.post("/models/unload", &json!({"model": "a"})).await;
    let expected = "model `a` is in use by running requests";
    assert_eq!((answer.status, answer.message().as_str()), (400, expected));
    drop(guard);
    let answer = app.post("/models/unload", &json!({"model": "a"})).await;
    assert_eq!(answer.json(), json!({"success": true}));
    wait_for(&app, "a", "unloaded").await;
    let answer = app.post("/models/unload", &json!({"model": "a"})).await;
    assert_eq!((answer.status, answer.message().as_str()), (400, "model `a` is not loaded"));
    assert_eq!(app.post("/models/load", &json!({"model": "a"})).await.status, 200);
    wait_for(&app, "a", "loaded").await;
    for path in ["/models/load", "/models/unload"] {
        let answer = app.post(path, &json!({"model": "c"})).await;
        assert_eq!(answer.status, 404, "{path}");
        assert_eq!(app.post(path, &json!({})).await.status, 400);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_without_requests_sleeps() {
    let app =
        App::new(ServerOptions { models: vec![language("a")], ..ServerOptions::default() }).await;
    let second = Duration::from_secs(1);
    app.state().models().sleep(second);
    assert_eq!(status_of(&app, "a").await, "loaded");
    app.state().models().sleep(Duration::ZERO);
    wait_for(&app, "a", "sleeping").await;
    // Probes wake nothing.
    let props = app.get("/props").await.json();
    assert_eq!(
        (&props["is_sleeping"], &props["default_generation_settings"]["n_ctx"]),
        (&json!(true), &json!(0))
    );
    assert_eq!(app.get("/health").await.status, 200);
    assert_eq!(status_of(&app, "a").await, "sleeping");
    // Counting tokens does.
    assert_eq!(app.post("/tokenize", &json!({"content": "ab"})).await.status, 200);
    assert_eq!(status_of(&app, "a").await, "loaded");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_model_fails_every_request_and_is_tried_again() {
    let folder = folder(&["a", "b"]);
    let installed = Some(Models::at(folder.path()));
    let app = App::new(ServerOptions { installed, ..ServerOptions::default() }).await;
    assert_eq!(status_of(&app, "b").await, "unloaded");
    // Removed after its headers were read.
    let path = folder.path().join("b.gguf");
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let body = json!({"model": "b", "content": "ab"});
    let (first, second) = tokio::join!(app.post("/tokenize", &body), app.post("/tokenize", &body));
    for answer in [first, second] {
        assert_eq!((answer.status, answer.kind()), (500, "server_error".to_owned()));
        assert!(answer.message().starts_with("cannot open `b`: "), "{}", answer.text);
    }
    assert_eq!(status_of(&app, "b").await, "failed");
    std::fs::write(&path, &whole).unwrap();
    assert_eq!(app.post("/tokenize", &body).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_is_429() {
    let app = App::new(ServerOptions {
        models: vec![language("a")],
        max_queue: 2,
        metrics: true,
        ..ServerOptions::default()
    })
    .await;
    let guards =
        [app.state().language(None).await.unwrap(), app.state().language(None).await.unwrap()];
    let answer = app.post("/tokenize", &json!({"content": "ab"})).await;
    assert_eq!((answer.status, answer.kind()), (429, "rate_limit_error".to_owned()));
    assert_eq!(answer.header("retry-after"), "1");
    let metrics = app.get("/metrics").await.text;
    assert!(metrics.contains("stonechat:admission_rejections_total 1"), "{metrics}");
    drop(guards);
    assert_eq!(app.post("/tokenize", &json!({"content": "ab"})).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_preset_that_cannot_be_opened_is_an_error() {
    let path = test_data("text/evaluation.txt");
    let model = ModelOption { name: "text".to_owned(), path };
    let options = ServerOptions { models: vec![model], ..ServerOptions::default() };
    let error =
        stonechat_server::Server::bind(ServerOptions { port: 0, ..options }).await.unwrap_err();
    let error = error.to_string();
    assert!(error.starts_with("cannot open `text`: "), "{error}");
    assert_eq!(error.lines().count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removed_and_replaced_models_leave_the_list() {
    let folder = folder(&["a", "b"]);
    std::fs::write(folder.path().join("bad.gguf"), b"GGUF").unwrap();
    let installed = Some(Models::at(folder.path()));
    let app = App::new(ServerOptions { installed, ..ServerOptions::default() }).await;
    let ids = async || {
        let listed = app.get("/v1/models").await.json();
        let ids = listed["data"].as_array().unwrap().iter();
        let mut ids: Vec<_> = ids.map(|each| each["id"].as_str().unwrap().to_owned()).collect();
        ids.sort();
        ids
    };
    assert_eq!(ids().await, ["a", "b"]);
    let body = json!({"model": "a", "content": "ab"});
    assert_eq!(app.post("/tokenize", &body).await.status, 200);
    std::fs::remove_file(folder.path().join("a.gguf")).unwrap();
    assert_eq!(ids().await, ["b"]);
    // A file that was no model and one of other sizes.
    std::fs::copy(test_data("golden/llm/llama.gguf"), folder.path().join("bad.gguf")).unwrap();
    std::fs::copy(test_data("golden/llm/qwen3.gguf"), folder.path().join("b.gguf")).unwrap();
    assert_eq!(ids().await, ["b", "bad"]);
    let model = app.get("/v1/models/b").await.json();
    let bytes = std::fs::metadata(folder.path().join("b.gguf")).unwrap().len();
    assert!(model["meta"]["size"].as_u64().unwrap() <= bytes, "{model}");
    for (name, status) in [("b", 200), ("bad", 200), ("a", 404)] {
        let body = json!({"model": name, "content": "ab"});
        assert_eq!(app.post("/tokenize", &body).await.status, status, "{name}");
    }
}
