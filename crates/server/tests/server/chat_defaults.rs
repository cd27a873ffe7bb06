//! Reasoning and template variables of chats that do not say otherwise.

use serde_json::{Value, json};
use stonechat_server::{ChatDefaults, ServerOptions};

use crate::support::{App, language};
use crate::text::with;

/// Template that tells its variables.
const TEMPLATE: &str = "{% for message in messages %}{{ message.content }}{% endfor %}\
    {% if enable_thinking is defined and not enable_thinking %} quietly{% endif %}\
    {% if tone is defined %} in a {{ tone }} tone{% endif %}";

async fn app(chat: ChatDefaults) -> App {
    let mut options =
        ServerOptions { models: vec![language("m")], chat, ..ServerOptions::default() };
    options.engine.chat_template = Some(TEMPLATE.to_owned());
    App::new(options).await
}

fn chat(fields: Value) -> Value {
    with(json!({"messages": [{"role": "user", "content": "ab"}], "max_tokens": 1}), fields)
}

async fn prompt(app: &App, fields: Value) -> String {
    let answer = app.post("/apply-template", &chat(fields)).await.json();
    answer["prompt"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_wins_over_the_defaults_of_the_server() {
    let variables = json!({"tone": "dry"}).as_object().unwrap().clone();
    let defaults = ChatDefaults { thinking: Some(false), variables, ..ChatDefaults::default() };
    let app = app(defaults).await;
    for (fields, expected) in [
        (json!({}), "ab quietly in a dry tone"),
        (json!({"enable_thinking": true}), "ab in a dry tone"),
        (json!({"reasoning_effort": "high"}), "ab in a dry tone"),
        (json!({"chat_template_kwargs": {"enable_thinking": true}}), "ab in a dry tone"),
        (json!({"chat_template_kwargs": {"tone": "warm"}}), "ab quietly in a warm tone"),
    ] {
        assert_eq!(prompt(&app, fields.clone()).await, expected, "{fields}");
    }
}

/// Every route of chats has the prompt that is counted.
#[tokio::test(flavor = "multi_thread")]
async fn answers_have_the_prompt_of_the_defaults() {
    let none = app(ChatDefaults::default()).await;
    let off = app(ChatDefaults { thinking: Some(false), ..ChatDefaults::default() }).await;
    let counts = async |app: &App| {
        let body = chat(json!({}));
        let counted = app.post("/v1/chat/completions/input_tokens", &body).await.json();
        let openai = app.post("/v1/chat/completions", &body).await.json();
        let anthropic = app.post("/v1/messages", &body).await.json();
        let of_anthropic = app.post("/v1/messages/count_tokens", &body).await.json();
        let one = json!({"model": "m", "stream": false, "options": {"num_predict": 1}});
        let ollama = app.post("/api/chat", &chat(one)).await.json();
        let usage = &anthropic["usage"];
        let count = |value: &Value| value.as_u64().unwrap();
        [
            count(&counted["input_tokens"]),
            count(&openai["usage"]["prompt_tokens"]),
            count(&usage["input_tokens"]) + count(&usage["cache_read_input_tokens"]),
            count(&of_anthropic["input_tokens"]),
            count(&ollama["prompt_eval_count"]),
        ]
    };
    let (plain, quiet) = (counts(&none).await, counts(&off).await);
    assert_eq!((plain, quiet), ([plain[0]; 5], [quiet[0]; 5]));
    assert!(quiet[0] > plain[0], "{quiet:?}, {plain:?}");
}
