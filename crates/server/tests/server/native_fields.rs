//! Fields of llama-server that add to an answer: progress, probabilities after the samplers, settings, `__verbose`.

use serde_json::{Value, json};
use stonechat_server::ServerOptions;

use crate::support::{App, language, speech};
use crate::text::{chat, chunks, greedy, with};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn progress_begins_with_the_cached_tokens() {
    let app = App::language().await;
    let prompt = with(json!({"prompt": "the cat and the hat", "n_predict": 2}), greedy());
    let fields = json!({"stream": true, "return_progress": true});
    for (path, body) in [("/completion", prompt), ("/v1/chat/completions", chat())] {
        for is_cached in [false, true] {
            let events = chunks(&app.post(path, &with(body.clone(), fields.clone())).await);
            let progress: Vec<&Value> =
                events.iter().filter(|event| event.get("prompt_progress").is_some()).collect();
            assert!(progress.iter().all(|event| event["timings"]["prompt_n"].is_u64()), "{path}");
            let first = &progress[0]["prompt_progress"];
            assert_eq!(first["processed"], first["cache"], "{path} {first}");
            assert_eq!(first["cache"] != 0, is_cached, "{path} {first}");
            let last = &progress.last().unwrap()["prompt_progress"];
            assert!(progress.len() > 1 && last["processed"] == last["total"], "{path} {last}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn probabilities_after_the_samplers_are_those_of_the_draw() {
    let app = App::language().await;
    let body = json!({
        "prompt": "ab", "n_predict": 4, "n_probs": 5, "post_sampling_probs": true,
        "top_k": 3, "temperature": 0.7, "seed": 4, "ignore_eos": true,
    });
    for samplers in [json!(["top_k", "temperature"]), json!(["temperature", "top_k"])] {
        let body = with(body.clone(), json!({"samplers": samplers}));
        let answer = app.post("/completion", &body).await.json();
        assert_eq!(answer["generation_settings"]["post_sampling_probs"], true);
        let entries = answer["completion_probabilities"].as_array().unwrap();
        assert_eq!(entries.len(), 4);
        for entry in entries {
            assert!(entry.get("logprob").is_none() && entry.get("top_logprobs").is_none());
            let top = entry["top_probs"].as_array().unwrap();
            let probs: Vec<f64> = top.iter().map(|prob| prob["prob"].as_f64().unwrap()).collect();
            // Top-k leaves three.
            assert!(probs.len() == 3 && probs.is_sorted_by(|a, b| a >= b), "{entry}");
            assert!((probs.iter().sum::<f64>() - 1.0).abs() < 1e-5, "{entry}");
            let own = top.iter().find(|prob| prob["id"] == entry["id"]).unwrap();
            assert_eq!(own["prob"], entry["prob"]);
        }
        let raw = with(body, json!({"post_sampling_probs": false}));
        let raw = app.post("/completion", &raw).await.json();
        assert_eq!(raw["content"], answer["content"]);
        assert!(raw["completion_probabilities"][0]["logprob"].as_f64().unwrap() < 0.0);
    }
    let fields = json!({"logprobs": true, "top_logprobs": 2, "post_sampling_probs": true});
    let answer = app.post("/v1/chat/completions", &with(chat(), fields)).await.json();
    // Greedy: the token is certain.
    assert_eq!(answer["choices"][0]["logprobs"]["content"][0]["prob"], 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_have_the_biases() {
    let app = App::language().await;
    let settings = async |fields: Value| {
        let body = with(json!({"prompt": "ab", "n_predict": 1}), fields);
        app.post("/completion", &body).await.json()["generation_settings"].clone()
    };
    let plain = settings(json!({})).await;
    assert_eq!((&plain["ignore_eos"], &plain["logit_bias"]), (&false.into(), &json!([])));
    let given = settings(json!({"ignore_eos": true, "logit_bias": [[5, 1.5]]})).await;
    let end = app.post("/tokenize", &json!({"content": "</s>"})).await.json();
    // JSON has no infinity.
    let biases = json!([
        {"token": 5, "bias": 1.5},
        {"token": end["tokens"][0], "bias": null},
    ]);
    assert_eq!((&given["ignore_eos"], &given["logit_bias"]), (&true.into(), &biases));
    assert_eq!((&given["max_tokens"], &given["n_predict"]), (&1.into(), &1.into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_verbose_answer_has_that_of_the_native_route() {
    let app = App::language().await;
    let prompt = with(json!({"prompt": "ab", "max_tokens": 3}), greedy());
    for (path, body) in [("/v1/completions", prompt), ("/v1/chat/completions", chat())] {
        let plain = app.post(path, &body).await.json();
        assert!(plain.get("__verbose").is_none(), "{path}");
        let body = with(body, json!({"verbose": true}));
        let answer = app.post(path, &body).await.json();
        let choice = &answer["choices"][0];
        let text =
            if path.contains("chat") { &choice["message"]["content"] } else { &choice["text"] };
        let native = &answer["__verbose"];
        assert_eq!((&native["content"], &native["stop"]), (text, &true.into()), "{path}");
        assert_eq!(native["tokens_predicted"], answer["usage"]["completion_tokens"]);
        assert!(native["prompt"].as_str().unwrap().contains("ab"), "{native}");
        assert_eq!(native["generation_settings"]["ignore_eos"], true);
        let chunks = chunks(&app.post(path, &with(body, json!({"stream": true}))).await);
        let verbose = chunks.iter().filter_map(|chunk| chunk.get("__verbose"));
        assert_eq!(verbose.map(|native| &native["stop_type"]).collect::<Vec<_>>(), ["limit"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_no_model_has_is_that_of_the_only_one() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["one", "two"] {
        let path = folder.path().join(name).with_extension("gguf");
        std::fs::copy(language("").path, path).unwrap();
        let path = folder.path().join(format!("{name}-ears.gguf"));
        std::fs::copy(speech("").path, path).unwrap();
    }
    let installed = stonechat::Models::at(folder.path());
    let options = ServerOptions {
        models: vec![language("m"), speech("s")],
        installed: Some(installed.clone()),
        ..ServerOptions::default()
    };
    // Models of a folder beside it change nothing.
    let app = App::new(options).await;
    for fields in [json!({"model": "gpt-4o"}), json!({})] {
        let answer = app.post("/v1/chat/completions", &with(chat(), fields)).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        // The answer does not say that it is of a model that is not there.
        assert_eq!(answer.json()["model"], "m");
    }
    let answer = app.post("/tokenize", &json!({"content": "a", "model": "two"})).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(app.state().speech(Some("whisper-1")).await.is_ok());
    // With several models, none is meant.
    let options = ServerOptions { installed: Some(installed), ..ServerOptions::default() };
    let app = App::new(options).await;
    let answer = app.post("/v1/chat/completions", &with(chat(), json!({"model": "gpt-4o"}))).await;
    assert_eq!(answer.status, 404, "{answer:?}");
    assert_eq!(app.state().speech(Some("whisper-1")).await.unwrap_err().status(), 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_method_is_told_the_right_ones() {
    let app = App::language().await;
    let answer = app.post("/v1/models", &json!({})).await;
    let expected = "POST is not allowed for this path (allowed: GET)";
    assert_eq!((answer.status, answer.message().as_str()), (405, expected));
    assert_eq!(answer.header("allow"), "GET,HEAD");
    let answer = app.get("/v1/chat/completions").await;
    let expected = "GET is not allowed for this path (allowed: POST)";
    assert_eq!((answer.status, answer.message().as_str()), (405, expected));
    assert_eq!(app.get("/props").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_name_no_types_of_the_program() {
    let app = App::language().await;
    for (fields, expected) in [
        (json!({"temperature": "hot"}), "string \"hot\", expected a number"),
        (json!({"top_k": "a"}), "string \"a\", expected a whole number"),
        (json!({"seed": "a"}), "string \"a\", expected a whole number"),
        (json!({"n_probs": []}), "sequence, expected a whole number"),
    ] {
        let answer = app.post("/v1/chat/completions", &with(chat(), fields)).await;
        assert_eq!(answer.status, 400, "{answer:?}");
        assert!(answer.message().contains(expected), "{answer:?}");
    }
    let answer = app.post("/v1/embeddings", &json!({"input": "a", "dimensions": "a"})).await;
    assert!(answer.message().contains("expected a whole number"), "{answer:?}");
}
