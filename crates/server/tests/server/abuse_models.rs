//! Models that panic, and more models than memory: the server goes on, and says how it is.

use std::sync::Arc;

use serde_json::{Value, json};
use stonechat::Models;
use stonechat_server::{ServerOptions, StepObserver};
use stonechat_testkit::{Bomb, Lcg};

use crate::audio::{multilingual, noise, transcribe};
use crate::support::{App, language, test_data};
use crate::text::{greedy, with};

/// Value of a metric, summed over its labels.
fn metric(text: &str, name: &str) -> f64 {
    let lines = text.lines().filter(|line| line.starts_with(name));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn panics_of_engines_leave_a_server_that_says_so() {
    let bomb = Bomb::default();
    let in_step = bomb.clone();
    let mut options = ServerOptions {
        models: vec![language("m"), multilingual()],
        metrics: true,
        ..ServerOptions::default()
    };
    options.engine.on_step = Some(StepObserver::new(move |_| in_step.call()));
    let app = App::new(options).await;
    let body = |text: &str| with(json!({"prompt": text, "n_predict": 40}), greedy());
    let expected = app.post("/completion", &body("the cat")).await.json()["content"].clone();
    let wav = noise(1);
    let mut random = Lcg::new(11);
    for round in 0..16 {
        bomb.set(1 + random.next_u32() as usize % 30);
        let (texts, speech) = (["the cat", "a", "b"].map(&body), &wav);
        let posts = [0, 1, 2].map(|i| app.post("/completion", &texts[i]));
        let [first, second, third] = posts;
        let (first, second, third, fourth, health) =
            tokio::join!(first, second, third, transcribe(&app, &[], speech), app.get("/health"),);
        for answer in [first, second, third, fourth] {
            assert!(matches!(answer.status, 200 | 500), "{round}: {answer:?}");
            if answer.status == 500 {
                assert!(answer.message().contains("boom"), "{round}: {answer:?}");
            }
        }
        assert_eq!(health.status, 200);
        bomb.set(0);
        // The next request gets a model with a fresh state.
        let answer = app.post("/completion", &body("the cat")).await;
        assert_eq!((answer.status, &answer.json()["content"]), (200, &expected), "{round}");
        assert_eq!(transcribe(&app, &[], &wav).await.status, 200);
    }
    let health: Value = app.get("/health").await.json();
    let n_panics = health["engine_panics"].as_u64().unwrap();
    assert!((1..=16).contains(&n_panics), "{health}");
    assert!(health.get("stopped_models").is_none(), "{health}");
    let metrics = app.get("/metrics").await.text;
    assert_eq!(metric(&metrics, "stonechat:engine_panics_total") as u64, n_panics);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_models_take_turns_on_the_memory_of_two() {
    let folder = tempfile::tempdir().unwrap();
    let original = test_data("golden/llm/llama.gguf");
    let first = folder.path().join("m0.gguf");
    std::fs::copy(original, &first).unwrap();
    for i in 1..64 {
        std::fs::hard_link(&first, folder.path().join(format!("m{i}.gguf"))).unwrap();
    }
    let installed = Some(Models::at(folder.path()));
    let options = |models_memory| ServerOptions {
        installed: installed.clone(),
        models_memory,
        metrics: true,
        ..ServerOptions::default()
    };
    let listed = App::closed(options(None)).state().models().list().await;
    assert_eq!(listed.len(), 64);
    let budget = listed[0].spec.memory_bytes * 2;
    let app = Arc::new(App::new(options(Some(budget))).await);
    let tasks: Vec<_> = (0..64)
        .map(|i| {
            let app = Arc::clone(&app);
            let body = json!({"model": format!("m{i}"), "prompt": "ab", "n_predict": 2});
            tokio::spawn(async move { app.post("/completion", &body).await })
        })
        .collect();
    for task in tasks {
        let answer = task.await.unwrap();
        assert_eq!(answer.status, 200, "{answer:?}");
        let metrics = app.get("/metrics").await.text;
        assert!(metric(&metrics, "stonechat:models_memory_bytes") <= budget as f64, "{metrics}");
        assert_eq!(app.get("/health").await.status, 200);
    }
    let n_open = app.state().models().list().await;
    let n_open = n_open.iter().filter(|model| model.status.name() == "loaded").count();
    assert!(n_open <= 2, "{n_open}");
}
