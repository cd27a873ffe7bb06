//! Bodies and headers of clients as they send them, and what they read; `docs/notes/complaints.md` lists the others.

use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};
use stonechat_server::{ModelOption, ServerOptions};

use crate::responses::caller;
use crate::support::{Answer, App, language};
use crate::text::{chunks, with};
use crate::{anthropic, text};

const CHAT: &str = "/v1/chat/completions";
/// Template with tools and calls in the form of Hermes.
const TOOLS: &str = "{{ tools|tojson if tools }}{% for m in messages %}{{ m.content }}\
    {% for c in m.tool_calls or [] %}<tool_call>\n{{ c.function|tojson }}\n</tool_call>{% endfor %}{% endfor %}";

async fn send(app: &App, path: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
    let mut request = Request::post(path).header("content-type", "application/json");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    app.send(request.body(Body::from(body.to_string())).unwrap()).await
}

/// A server whose context has room for definitions of tools.
async fn roomy(model: ModelOption, template: Option<&str>) -> App {
    let mut options = ServerOptions { models: vec![model], ..ServerOptions::default() };
    options.engine.n_ctx = Some(4096);
    options.engine.chat_template = template.map(str::to_owned);
    App::new(options).await
}

/// Argument of the call, longer than its name and all white space before it.
const VALUE: &str = "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz";

/// Schema of one object.
fn parameters() -> Value {
    json!({
        "type": "object", "properties": {"n": {"enum": [VALUE]}}, "required": ["n"],
        "additionalProperties": false,
    })
}

/// Chat whose answer is one call.
fn forced(max_tokens: usize) -> Value {
    let function = json!({"name": "f", "parameters": parameters()});
    json!({
        "messages": [{"role": "user", "content": "ab"}], "temperature": 0, "max_tokens": max_tokens,
        "tools": [{"type": "function", "function": function}], "tool_choice": "required",
        "parallel_tool_calls": false,
    })
}

/// Body of Codex: codex-rs/codex-api, `common.rs`.
fn codex(input: &str) -> Value {
    let parameters = json!({"type": "object", "properties": {"command": {"type": "string"}}});
    let function = |name: &str| json!({"type": "function", "name": name, "description": "run", "strict": false, "parameters": parameters});
    let content = json!([{"type": "input_text", "text": input}]);
    json!({
        "model": "m", "instructions": "the cat", "stream": true, "store": false,
        "input": [{"type": "message", "role": "user", "content": content}],
        "tools": [
            function("shell"), {"type": "web_search", "external_web_access": true},
            {"type": "image_generation", "output_format": "png"},
            {"type": "custom", "name": "apply_patch", "description": "patch",
                "format": {"type": "grammar", "syntax": "lark", "definition": "start: \"a\""}},
            {"type": "namespace", "name": "mcp__s__", "description": "s", "tools": [function("find")]},
        ],
        "tool_choice": "auto", "parallel_tool_calls": true, "prompt_cache_key": "0199",
        "reasoning": {"effort": "medium", "summary": "auto"}, "text": {"verbosity": "low"},
        "include": ["reasoning.encrypted_content"], "client_metadata": {"turn": "1"},
        "max_output_tokens": 8, "temperature": 0, "ignore_eos": true,
    })
}

/// codex 10635, unsloth 5141, `ik_llama.cpp` PR 1964, ollama 17593.
#[tokio::test(flavor = "multi_thread")]
async fn codex_gets_a_stream_that_ends_with_completed_and_its_usage() {
    let app = roomy(language("m"), None).await;
    let events = anthropic::events(&app.post("/v1/responses", &codex("ab")).await);
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds[..2], ["response.created", "response.in_progress"]);
    assert_eq!(kinds.iter().filter(|kind| **kind == "response.completed").count(), 1);
    assert_eq!(kinds.last(), Some(&"response.completed"));
    let response = &events.last().unwrap()["response"];
    let usage = &response["usage"];
    let count = |name: &str| usage[name].as_u64().unwrap();
    assert!(count("output_tokens") == 8 && count("input_tokens") > 0, "{usage}");
    assert_eq!(count("total_tokens"), count("input_tokens") + 8);
    let deltas = events.iter().filter(|event| event["type"] == "response.output_text.delta");
    let text: String = deltas.map(|event| event["delta"].as_str().unwrap()).collect();
    let parts = response["output"].as_array().unwrap().iter();
    let parts = parts.filter_map(|item| item["content"][0]["text"].as_str());
    assert_eq!(parts.collect::<String>(), text);
}

/// Codex does not read `exceed_context_size_error`.
#[tokio::test(flavor = "multi_thread")]
async fn codex_reads_a_full_context_in_the_stream() {
    let app = App::language().await;
    let events = anthropic::events(&app.post("/v1/responses", &codex(&"ab ".repeat(1000))).await);
    let last = events.last().unwrap();
    assert_eq!((&last["type"], events.len()), (&json!("response.failed"), 3));
    assert_eq!(last["response"]["error"]["code"], "context_length_exceeded");
}

#[tokio::test(flavor = "multi_thread")]
async fn claude_code_has_its_headers_keys_and_fields_accepted() {
    let (models, api_keys) = (vec![language("m")], vec!["k".to_owned()]);
    let app = App::new(ServerOptions { models, api_keys, ..ServerOptions::default() }).await;
    let fields = json!({
        "betas": ["context-1m-2025-08-07"], "context_management": {"edits": []}, "max_tokns": 1,
        "metadata": {"user_id": "u"}, "thinking": {"type": "adaptive"}, "speed": "fast",
    });
    let body = with(anthropic::body(), fields);
    let version = [
        ("anthropic-version", "2023-06-01"),
        ("anthropic-beta", "claude-code-20250219,interleaved-thinking-2025-05-14"),
        ("anthropic-dangerous-direct-browser-access", "true"),
    ];
    for path in ["/v1/messages?beta=true", "/v1/messages/count_tokens?beta=true"] {
        for key in [("authorization", "Bearer k"), ("x-api-key", "k")] {
            let answer = send(&app, path, &[&version[..], &[key]].concat(), &body).await;
            assert_eq!(answer.status, 200, "{path} {key:?}: {answer:?}");
        }
        let answer = send(&app, path, &version, &body).await;
        let error = answer.json();
        assert_eq!((answer.status, &error["type"]), (401, &json!("error")));
        assert_eq!(error["error"]["type"], "authentication_error");
    }
}

/// llama.cpp PR 20623, ollama PR 14918, claude-code-router 1217: the line differs in each turn, so that the whole prompt ran.
#[tokio::test(flavor = "multi_thread")]
async fn a_billing_line_that_changes_keeps_the_cached_prompt() {
    let app = App::language().await;
    let usage = async |hash: &str| {
        let line = format!("x-anthropic-billing-header: cc_version=2.1; cch={hash};");
        let system = json!([
            {"type": "text", "text": line}, {"type": "text", "text": "the cat sat on the mat"},
        ]);
        let body = with(anthropic::body(), json!({"system": system}));
        app.post("/v1/messages", &body).await.json()["usage"].clone()
    };
    let (first, second) = (usage("0a1b2").await, usage("f3e4d").await);
    assert_eq!(first["cache_read_input_tokens"], 0);
    // The last token runs for its logits.
    assert_eq!(second["input_tokens"], 1, "{second}");
}

/// Zed reads each line as `choices` with an optional `usage`: `crates/open_ai`.
#[tokio::test(flavor = "multi_thread")]
async fn zed_has_its_fields_accepted_and_reads_chunks_alone() {
    let app = roomy(language("m"), None).await;
    let function = json!({"name": "f", "description": "d", "parameters": {"type": "object"}});
    let body = json!({
        "model": "m", "stream": true, "stream_options": {"include_usage": true},
        "messages": [
            {"role": "system", "content": "the cat"},
            {"role": "user", "content": [{"type": "text", "text": "ab"}, {"type": "text", "text": "cd"}]},
        ],
        "stop": [], "temperature": 0, "max_completion_tokens": 8, "parallel_tool_calls": false,
        "tools": [{"type": "function", "function": function}], "tool_choice": "auto",
        "prompt_cache_key": "thread-1", "reasoning_effort": "low",
    });
    let chunks = chunks(&app.post(CHAT, &body).await);
    let (usage, parts) = chunks.split_last().unwrap();
    for chunk in parts {
        assert_eq!(chunk["choices"].as_array().unwrap().len(), 1, "{chunk}");
        assert!(chunk.get("error").is_none() && chunk.get("usage").is_none(), "{chunk}");
    }
    assert_eq!(usage["choices"], json!([]));
    assert!(usage["usage"]["completion_tokens"].as_u64() <= Some(8), "{usage}");
}

/// Continue's provider `llama.cpp`: core/llm/llms.
#[tokio::test(flavor = "multi_thread")]
async fn continue_has_its_options_accepted_on_the_native_route() {
    let app = App::language().await;
    let body = json!({
        "prompt": "ab", "stream": true, "n_predict": 4, "stop": ["</s>"], "top_k": 40, "top_p": 0.9,
        "min_p": 0.05, "mirostat": 0, "presence_penalty": 0, "frequency_penalty": 0,
        "temperature": 0.1, "model": "m", "ignore_eos": true,
    });
    let events = chunks(&app.post("/completion", &body).await);
    let (last, parts) = events.split_last().unwrap();
    assert!(parts.iter().all(|event| event["content"].is_string() && event["stop"] == false));
    assert_eq!((&last["stop"], &last["tokens_predicted"]), (&json!(true), &json!(4)));
}

/// `/api/show` without `tools` turns the agent mode of VS Code off.
#[tokio::test(flavor = "multi_thread")]
async fn vs_code_is_told_which_models_call_tools() {
    for (template, has_tools) in [(Some(TOOLS), true), (None, false)] {
        let app = roomy(language("m"), template).await;
        let show = app.post("/api/show", &json!({"model": "m"})).await.json();
        let tags = app.get("/api/tags").await.json();
        for capabilities in [&show["capabilities"], &tags["models"][0]["capabilities"]] {
            let names = capabilities.as_array().unwrap();
            assert_eq!(names.contains(&json!("tools")), has_tools, "{capabilities}");
        }
    }
}

/// `Open WebUI` lists voices and models of speech output when it starts, and sends a key that must not be empty.
#[tokio::test(flavor = "multi_thread")]
async fn open_webui_reads_that_there_is_no_speech_output() {
    let app = App::language().await;
    let speech = json!({"model": "tts-1", "input": "ab", "voice": "alloy"});
    for answer in [
        app.get("/v1/audio/voices").await,
        app.get("/v1/audio/models").await,
        app.post("/v1/audio/speech", &speech).await,
    ] {
        assert_eq!((answer.status, answer.kind().as_str()), (404, "not_found_error"));
        assert!(answer.message().starts_with("no route "), "{}", answer.message());
    }
    let any_key = [("authorization", "Bearer -")];
    let answer = send(&app, CHAT, &any_key, &text::chat()).await;
    assert_eq!(answer.status, 200, "a server without keys takes any: {answer:?}");
}

/// `LangChain`, the AI SDK, Copilot CLI and others read calls in the form of their API.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_has_the_form_of_each_api() {
    let app = roomy(caller(), Some(TOOLS)).await;
    let parsed = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    let arguments = json!({"n": VALUE});
    let whole = app.post(CHAT, &forced(400)).await.json();
    let choice = &whole["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["content"]),
        (&"tool_calls".into(), &Value::Null)
    );
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    let function = &calls[0]["function"];
    assert_eq!(
        (calls.len(), &calls[0]["type"], &function["name"]),
        (1, &"function".into(), &"f".into())
    );
    assert_eq!(parsed(function["arguments"].as_str().unwrap()), arguments);

    let chunks = chunks(&app.post(CHAT, &with(forced(400), json!({"stream": true}))).await);
    let deltas =
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["tool_calls"].get(0));
    let deltas: Vec<&Value> = deltas.collect();
    assert_eq!(deltas.iter().filter(|delta| delta.get("id").is_some()).count(), 1, "{deltas:?}");
    assert!(deltas.iter().all(|delta| delta["index"] == 0), "{deltas:?}");
    let text = deltas.iter().map(|delta| delta["function"]["arguments"].as_str().unwrap());
    assert_eq!(parsed(&text.collect::<String>()), arguments);
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");

    let messages = &json!({
        "messages": [{"role": "user", "content": "ab"}], "max_tokens": 400, "temperature": 0,
        "tools": [{"name": "f", "input_schema": parameters()}],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
    });
    let message = app.post("/v1/messages", messages).await.json();
    let block = &message["content"][0];
    assert_eq!(
        (&block["type"], &block["name"], &block["input"]),
        (&"tool_use".into(), &"f".into(), &arguments)
    );
    assert_eq!(message["stop_reason"], "tool_use");

    let input = &json!({
        "input": "ab", "max_output_tokens": 400, "temperature": 0, "parallel_tool_calls": false,
        "tools": [{"type": "function", "name": "f", "parameters": parameters()}],
        "tool_choice": "required",
    });
    let response = app.post("/v1/responses", input).await.json();
    let item = &response["output"][0];
    assert_eq!((&item["type"], &item["name"]), (&"function_call".into(), &"f".into()));
    assert_eq!(parsed(item["arguments"].as_str().unwrap()), arguments);
}

/// ollama 17250 and 17883: an empty answer with 200, and a slot that was not free for the next request.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_cut_off_ends_by_length_and_the_next_one_is_whole() {
    let app = roomy(caller(), Some(TOOLS)).await;
    for stream in [false, true] {
        let cut = app.post(CHAT, &with(forced(60), json!({"stream": stream}))).await;
        assert!(cut.text.contains("\"finish_reason\":\"length\""), "{cut:?}");
        assert!(cut.text.contains("\"name\":\"f\""), "{cut:?}");
        let whole = app.post(CHAT, &forced(400)).await.json();
        assert_eq!(whole["choices"][0]["finish_reason"], "tool_calls", "{whole}");
    }
}
