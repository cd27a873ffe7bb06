//! Complaints of users of other servers; `docs/notes/complaints.md` lists all of them with their tests.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use stonechat::llm::Pooling;
use stonechat_server::{ModelOption, ServerOptions};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::deadlines::{endless, occupy, options as one_slot};
use crate::live_client::{PATIENCE, Running};
use crate::operation::wait_for;
use crate::support::{App, language, test_data, with_metadata};
use crate::text::{greedy, with};

/// A server with the model of a golden file.
async fn golden(name: &str) -> App {
    let path = test_data(&format!("golden/llm/{name}.gguf"));
    let models = vec![ModelOption { name: "m".to_owned(), path }];
    App::new(ServerOptions { models, ..ServerOptions::default() }).await
}

/// llama.cpp 24496, 13262 and 11720, lemonade 2898.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_text_ends_with_the_connection_of_its_client() {
    let server = Running::start(one_slot()).await;
    for stream in [false, true] {
        let body = with(endless(), json!({"stream": stream})).to_string();
        let head = format!(
            "POST /completion HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        let mut client = TcpStream::connect(&server.address).await.unwrap();
        client.write_all((head + &body).as_bytes()).await.unwrap();
        wait_for(&server.state, "num_requests_running", 1.0).await;
        drop(client);
        wait_for(&server.state, "num_requests_running", 0.0).await;
    }
}

/// `ik_llama.cpp` 1929.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_the_queue_ends_no_text_of_another() {
    let app = Arc::new(App::new(one_slot()).await);
    let running = occupy(&app).await;
    let slot = async || app.get("/slots").await.json()[0].clone();
    let n_decoded = async || slot().await["next_token"][0]["n_decoded"].clone();
    let request = slot().await["id_task"].clone();
    let queued = endless();
    tokio::select! {
        answer = app.post("/completion", &queued) => panic!("{answer:?}"),
        () = wait_for(app.state(), "num_requests_waiting", 1.0) => {}
    }
    wait_for(app.state(), "num_requests_waiting", 0.0).await;
    let before = n_decoded().await;
    let goes_on = async {
        while n_decoded().await == before {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, goes_on).await.unwrap();
    assert_eq!(slot().await["id_task"], request);
    assert!(!running.is_finished());
    running.abort();
}

/// llama.cpp 20153, 22746, 23013, 24714, 21831 and 19794: the whole prompt ran again in each turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_turn_of_a_model_with_sliding_windows_runs_its_new_tokens_alone() {
    for name in ["gemma2", "gemma3", "gpt-oss"] {
        let app = golden(name).await;
        let mut prompt: Vec<u64> = (0..70).map(|i| i * 7 % 50 + 5).collect();
        let mut n_known = 0;
        for turn in 0..3 {
            let fields = json!({"prompt": prompt, "n_predict": 10, "return_tokens": true});
            let answer = app.post("/completion", &with(fields, greedy())).await.json();
            let n_cached = answer["timings"]["cache_n"].as_u64();
            assert!(n_cached >= Some(n_known), "{name}, turn {turn}: {n_cached:?} of {n_known}");
            // The last token of a text has not run.
            n_known = prompt.len() as u64 + 9;
            let text = answer["tokens"].as_array().unwrap();
            prompt.extend(text.iter().map(|token| token.as_u64().unwrap()));
            prompt.extend((0..20).map(|i| (i * 11 + turn) % 50 + 5));
        }
    }
}

/// llama.cpp 24807, 27025, 25510, PRs 24329 and 19612: 500, and a server that did not go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_malformed_history_of_calls_is_an_error_of_its_request() {
    let mut options = ServerOptions { models: vec![language("m")], ..ServerOptions::default() };
    // A template that reads the members of arguments.
    options.engine.chat_template = Some(
        "{{ tools|tojson if tools }}{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}\
         {{ c.function.name }}{% for k, v in c.function.arguments.items() %}{{ k }} {{ v }}{% endfor %}\
         {% endfor %}{% endfor %}"
            .to_owned(),
    );
    let app = App::new(options).await;
    let post = async |calls: &Value| {
        let messages = json!([
            {"role": "user", "content": "ab"},
            {"role": "assistant", "content": "cd", "tool_calls": calls},
            {"role": "tool", "tool_call_id": "1", "content": "e"},
        ]);
        let body = with(json!({"messages": messages, "max_tokens": 2}), greedy());
        app.post("/v1/chat/completions", &body).await
    };
    let call = |arguments: Value| {
        let function = json!({"name": "f", "arguments": arguments});
        json!([{"id": "1", "type": "function", "function": function}])
    };
    let sound = call(json!("{\"a\": \"b\"}"));
    for calls in [
        call(json!("{\"a\": \"b")),
        call(json!("a")),
        call(json!(7)),
        call(json!([1])),
        call(json!(null)),
        json!([{"id": "1", "type": "function"}]),
        json!([{"function": 7}]),
        json!([7]),
        json!("f"),
        json!({}),
    ] {
        let answer = post(&calls).await;
        assert!(matches!(answer.status, 200 | 400), "{calls}: {answer:?}");
        assert!(answer.status == 200 || !answer.message().is_empty(), "{calls}");
        assert_eq!(post(&sound).await.status, 200, "after {calls}");
    }
    assert_eq!(post(&call(json!("{\"a\": \"b"))).await.status, 400);
    let input =
        json!([{"type": "function_call", "call_id": "1", "name": "f", "arguments": "{\"a"}]);
    let answer = app.post("/v1/responses", &json!({"input": input, "max_output_tokens": 2})).await;
    assert_eq!(answer.status, 400, "{answer:?}");
}

/// ollama 3839, 18107, 17889 and 17427: the beginning of the prompt was left out without a word.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompt_longer_than_the_context_is_an_error_of_every_api() {
    let app = App::language().await;
    let n_ctx = app.get("/props").await.json()["default_generation_settings"]["n_ctx"].clone();
    let long = "ab ".repeat(1000);
    let messages = json!([{"role": "user", "content": long}]);
    let chat = json!({"model": "m", "messages": messages, "max_tokens": 1});
    for (path, body) in [
        ("/v1/chat/completions", &chat),
        ("/v1/messages", &chat),
        ("/api/chat", &json!({"model": "m", "messages": messages, "options": {"num_ctx": 4096}})),
        ("/api/generate", &json!({"model": "m", "prompt": long})),
        ("/v1/completions", &json!({"prompt": long})),
        ("/completion", &json!({"prompt": long})),
        ("/v1/responses", &json!({"input": long})),
        ("/v1/embeddings", &json!({"input": ["ab", long]})),
        ("/api/embed", &json!({"model": "m", "input": long, "truncate": true})),
    ] {
        let answer = app.post(path, body).await;
        assert_eq!(answer.status, 400, "{path}: {answer:?}");
        let error = &answer.json()["error"];
        let message = error["message"].as_str().or(error.as_str()).unwrap();
        assert!(message.contains(&n_ctx.to_string()), "{path}: {message}");
    }
}

/// Vector of the tokens of an input.
async fn embedded(options: ServerOptions, input: &[u32]) -> Vec<f32> {
    let app = App::new(options).await;
    let answer = app.post("/v1/embeddings", &json!({"input": input})).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    serde_json::from_value(answer.json()["data"][0]["embedding"].clone()).unwrap()
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f32>().sqrt()
}

/// llama.cpp 12295 and 12836, lemonade 3591, ramalama 2852: 500 beyond 512 tokens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_input_longer_than_a_batch_is_embedded_whole() {
    let input: Vec<u32> = (0..200).map(|i| i * i % 23 + if i < 64 { 5 } else { 30 }).collect();
    for pooling in [Pooling::Mean, Pooling::Last] {
        let embed = |n_batch, input| {
            let mut options = ServerOptions { pooling: Some(pooling), ..ServerOptions::default() };
            options.models.push(language("m"));
            options.engine.n_batch = n_batch;
            embedded(options, input)
        };
        let (whole, parts) = (embed(512, &input).await, embed(64, &input).await);
        let beginning = embed(64, &input[..64]).await;
        assert!(distance(&whole, &parts) < 5e-3, "{pooling}: {}", distance(&whole, &parts));
        assert!(distance(&parts, &beginning) > 5e-2, "{pooling}: {}", distance(&parts, &beginning));
    }
}

/// llama.cpp 12836: Qwen3-Embedding needs the last token, which its file says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embeddings_are_pooled_as_the_file_of_the_model_says() {
    const LAST: u32 = 3;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("last.gguf");
    std::fs::write(&path, with_metadata(|metadata| metadata.set("llama.pooling_type", LAST)))
        .unwrap();
    let of_file = ModelOption { name: "m".to_owned(), path };
    let embed = |model, pooling| {
        let models = vec![model];
        embedded(ServerOptions { models, pooling, ..ServerOptions::default() }, &[5, 17, 29, 41])
    };
    let got = embed(of_file, None).await;
    assert_eq!(got, embed(language("m"), Some(Pooling::Last)).await);
    assert_ne!(got, embed(language("m"), None).await);
}
