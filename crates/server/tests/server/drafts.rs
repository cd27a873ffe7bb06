//! Speculative decoding with a draft model.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use stonechat::llm::DraftLength;
use stonechat::{DraftSource, Models};
use stonechat_server::{AppState, EngineOptions, ModelOption, ServerOptions};
use stonechat_testkit::exchanged_tokens;
use tokio::runtime::Handle;

use crate::support::{App, language, test_data};

fn options(models: Vec<ModelOption>, draft: bool) -> ServerOptions {
    let length = DraftLength { max: 3, min: 0 };
    let path = test_data("golden/llm/llama.gguf");
    let drafts = draft.then_some(DraftSource::Model { path, length });
    let engine = EngineOptions { drafts, ..EngineOptions::default() };
    ServerOptions { models, engine, ..ServerOptions::default() }
}

/// The tiny model, with two tokens of its vocabulary exchanged.
fn other_vocabulary() -> ModelOption {
    let path: PathBuf = Path::new(env!("CARGO_TARGET_TMPDIR")).join("other-vocabulary.gguf");
    let model = exchanged_tokens(&test_data("golden/llm/llama.gguf"));
    std::fs::write(&path, model).unwrap();
    ModelOption { name: "other".to_owned(), path }
}

fn body(model: &str, prompt: &str, temperature: f32) -> Value {
    json!({
        "model": model, "prompt": prompt, "n_predict": 40, "temperature": temperature, "seed": 7,
        "ignore_eos": true,
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drafts_of_a_model_change_no_text_and_are_counted() {
    let models = || vec![language("m"), other_vocabulary()];
    let plain = App::new(options(models(), false)).await;
    let drafted = App::new(options(models(), true)).await;
    let requests = [
        body("m", "abcabc", 0.0),
        body("m", "the end", 0.0),
        body("m", "abcabc", 0.7),
        body("other", "abcabc", 0.0),
    ];
    // All at once share the steps of both models.
    let answers = tokio::join!(
        drafted.post("/completion", &requests[0]),
        drafted.post("/completion", &requests[1]),
        drafted.post("/completion", &requests[2]),
        drafted.post("/completion", &requests[3]),
    );
    let answers = [answers.0, answers.1, answers.2, answers.3];
    for (request, answer) in requests.iter().zip(answers) {
        let expected = plain.post("/completion", request).await.json();
        let got = answer.json();
        assert_eq!(got["content"], expected["content"], "{request}");
        assert!(expected["timings"]["draft_n"].is_null());
        if request["model"] == "other" {
            assert!(got["timings"]["draft_n"].is_null(), "{got}");
        } else {
            let [n, accepted] =
                ["draft_n", "draft_n_accepted"].map(|name| got["timings"][name].as_u64().unwrap());
            assert!(n > 0 && accepted <= n, "{got}");
        }
    }
    let list = |app: &App| {
        let models = app.state().models().clone();
        async move { models.list().await }
    };
    let (with, without) = (list(&drafted).await, list(&plain).await);
    let memory = |listed: &stonechat_server::ListedModel| listed.spec.memory_bytes;
    // The draft model is as large as its target here.
    assert_eq!(memory(&with[0]), 2 * memory(&without[0]));
    assert_eq!(memory(&with[1]), memory(&without[1]));
    assert!(with[0].spec.has_draft && !with[1].spec.has_draft);
    for (model, expected) in [("m", true), ("other", false)] {
        let slots = drafted.get(&format!("/slots?model={model}")).await.json();
        assert_eq!(slots[0]["speculative"], expected);
    }
}

#[tokio::test]
async fn a_draft_model_without_a_target_is_an_error() {
    let error =
        AppState::new(options(vec![other_vocabulary()], true), Handle::current()).unwrap_err();
    let error = error.to_string();
    let expected = "llama.gguf`: no model has the vocabulary of this draft model";
    assert!(error.starts_with("cannot open `") && error.ends_with(expected), "{error}");
    // Models that requests name may be targets.
    let folder = tempfile::tempdir().unwrap();
    let installed = Some(Models::at(folder.path()));
    let options = ServerOptions { installed, ..options(Vec::new(), true) };
    assert!(AppState::new(options, Handle::current()).is_ok());
}
