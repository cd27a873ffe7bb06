//! OpenAI's Responses, on a model of random weights that grammars and biases make predictable.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_json::{Value, json};
use stonechat_server::{ModelOption, ServerOptions, StepObserver};
use stonechat_testkit::Bomb;

use crate::control_tokens::with_tokens;
use crate::support::{Answer, App};
use crate::text::with;

/// Tokens with which the tiny model can write tool calls.
const TOKENS: [(&str, bool); 8] = [
    ("<", false),
    (">", false),
    ("_", false),
    ("/", false),
    ("{", false),
    ("}", false),
    ("\"", false),
    (":", false),
];
/// Template that opens reasoning unless it is turned off.
const TEMPLATE: &str = "{#- <think> </think> -#}
{%- for message in messages %}{{ message.role ~ ' ' ~ message.content ~ '\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ 'assistant ' }}
{%- if enable_thinking is not defined or enable_thinking %}{{ '<think>\\n' }}{% endif %}{% endif %}";
/// Tokens of `</think>`: `<`, `/`, `t`, `h`, `in`, `k`, `>`.
const N_CLOSING: u64 = 7;

/// The tiny model with these tokens.
pub(crate) fn caller() -> ModelOption {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    let path = PATH.get_or_init(|| {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tiny-tools.gguf");
        std::fs::write(&path, with_tokens(&TOKENS)).unwrap();
        path
    });
    ModelOption { name: "m".to_owned(), path: path.clone() }
}

/// Options of a server of this model; texts of requests without a limit do not end.
pub(crate) fn options() -> ServerOptions {
    let models = vec![caller()];
    let mut options = ServerOptions { models, context_shift: true, ..ServerOptions::default() };
    options.engine.chat_template = Some(TEMPLATE.to_owned());
    options.engine.n_ctx = Some(4096);
    options
}

/// A body whose answer is `text`.
pub(crate) fn saying(text: &str) -> Value {
    json!({
        "input": [{"role": "user", "content": "ab"}],
        "grammar": format!("root ::= \"{text}\""),
        "reasoning": {"effort": "none"},
        "max_output_tokens": 50,
    })
}

/// A body without an end, whose text is of the letter `a`.
fn endless() -> Value {
    json!({
        "input": "ab", "ignore_eos": true, "temperature": 0, "logit_bias": [[4, 100]],
        "reasoning": {"effort": "none"},
    })
}

/// A body whose answer calls a tool after three tokens of reasoning.
fn calling() -> Value {
    let city = json!({"enum": ["oslo"]});
    let parameters = json!({
        "type": "object", "properties": {"city": city}, "required": ["city"],
        "additionalProperties": false,
    });
    with(
        endless(),
        json!({
            "reasoning": {}, "reasoning_budget_tokens": 3, "max_output_tokens": 600, "ignore_eos": false,
            "tools": [
                {"type": "web_search"},
                {"type": "function", "name": "weather", "parameters": parameters},
                {"type": "custom", "name": "patch", "format": {"type": "grammar"}},
                {"type": "image_generation"},
            ],
            "tool_choice": "required", "parallel_tool_calls": false,
        }),
    )
}

/// Data of the events of a stream, whose names and numbers are checked.
#[track_caller]
fn events(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.header("content-type"), "text/event-stream");
    let events = answer.text.split("\n\n").filter(|event| !event.is_empty()).enumerate();
    let data = |(number, event): (usize, &str)| {
        let (name, data) = event.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!((&data["type"], &data["sequence_number"]), (&json!(name), &json!(number)));
        data
    };
    events.map(data).collect()
}

async fn streamed(app: &App, body: Value) -> Vec<Value> {
    events(&app.post("/v1/responses", &with(body, json!({"stream": true}))).await)
}

/// Types of events without `response.`, in a row once.
fn kinds(events: &[Value]) -> Vec<&str> {
    let names = events.iter().map(|event| event["type"].as_str().unwrap());
    let mut kinds: Vec<&str> = names.map(|name| name.strip_prefix("response.").unwrap()).collect();
    kinds.dedup();
    kinds
}

/// Joined deltas of a type.
fn joined(events: &[Value], kind: &str) -> String {
    let deltas = events.iter().filter(|event| event["type"] == kind);
    deltas.map(|event| event["delta"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_is_answered_whole_or_as_a_stream() {
    let app = App::new(options()).await;
    let whole = app.post("/v1/responses", &saying("hello there")).await.json();
    assert_eq!((&whole["object"], &whole["status"]), (&json!("response"), &json!("completed")));
    assert_eq!((&whole["model"], &whole["store"]), (&json!("m"), &json!(true)));
    assert_eq!((&whole["error"], &whole["incomplete_details"]), (&Value::Null, &Value::Null));
    let [message] = &whole["output"].as_array().unwrap()[..] else { panic!("{whole}") };
    assert_eq!((&message["type"], &message["status"]), (&json!("message"), &json!("completed")));
    let part =
        json!({"type": "output_text", "text": "hello there", "annotations": [], "logprobs": []});
    assert_eq!(message["content"], json!([part]));
    let usage = &whole["usage"];
    let total = usage["input_tokens"].as_u64().unwrap() + usage["output_tokens"].as_u64().unwrap();
    assert_eq!(usage["total_tokens"], total);
    assert_eq!(usage["output_tokens_details"]["reasoning_tokens"], 0);

    let counted = app.post("/v1/responses/input_tokens", &saying("hello there")).await.json();
    let expected =
        json!({"object": "response.input_tokens", "input_tokens": usage["input_tokens"]});
    assert_eq!(counted, expected);

    let events = streamed(&app, saying("hello there")).await;
    let expected = [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ];
    assert_eq!(kinds(&events), expected);
    assert_eq!(joined(&events, "response.output_text.delta"), "hello there");
    let last = &events.last().unwrap()["response"];
    assert_eq!(last["output"][0]["content"], whole["output"][0]["content"]);
    assert_eq!(last["id"], events[0]["response"]["id"]);
    // The second request finds the prompt of the first.
    assert!(last["usage"]["input_tokens_details"]["cached_tokens"].as_u64() > Some(0));
}

/// Agents list tools of OpenAI's servers with every request (codex 10635); the AI SDK and Codex read summaries.
#[tokio::test(flavor = "multi_thread")]
async fn reasoning_comes_before_a_call() {
    let app = App::new(options()).await;
    let plain = streamed(&app, calling()).await;
    let summary = json!({"reasoning": {"summary": "auto"}});
    let summed = streamed(&app, with(calling(), summary)).await;
    let call = [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ];
    let text =
        ["content_part.added", "reasoning_text.delta", "reasoning_text.done", "content_part.done"];
    let parts = [
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
    ];
    for (events, reasoning, place) in [(&plain, text, "content"), (&summed, parts, "summary")] {
        let mut expected = vec!["created", "in_progress", "output_item.added"];
        expected.extend(reasoning);
        expected.push("output_item.done");
        expected.extend(call);
        assert_eq!(kinds(events), expected);
        assert_eq!(joined(events, &format!("response.{}", reasoning[1])), "aaa");
        let arguments = joined(events, "response.function_call_arguments.delta");
        let response = &events.last().unwrap()["response"];
        let [thought, call] = &response["output"].as_array().unwrap()[..] else {
            panic!("{response}")
        };
        assert_eq!(
            (&thought["type"], &thought[place][0]["text"]),
            (&json!("reasoning"), &json!("aaa"))
        );
        assert_eq!((&call["type"], &call["name"]), (&json!("function_call"), &json!("weather")));
        assert_eq!(call["arguments"], arguments);
        let arguments: Value = serde_json::from_str(&arguments).unwrap();
        assert_eq!(arguments, json!({"city": "oslo"}));
        assert_eq!(
            (&response["status"], &call["status"]),
            (&json!("completed"), &json!("completed"))
        );
        assert_eq!(response["tools"].as_array().unwrap().len(), 4);
        let usage = &response["usage"];
        assert_eq!(usage["output_tokens_details"]["reasoning_tokens"], 3 + N_CLOSING);
        assert!(usage["output_tokens"].as_u64() > Some(3 + N_CLOSING), "{usage}");
    }
    let whole = app.post("/v1/responses", &calling()).await.json();
    let last = &plain.last().unwrap()["response"];
    assert_eq!(whole["output"][0]["content"], last["output"][0]["content"]);
    assert_eq!(whole["output"][1]["arguments"], last["output"][1]["arguments"]);
    let count = |response: &Value| response["usage"]["output_tokens_details"].clone();
    assert_eq!(count(&whole), count(last));

    let chat = json!({
        "messages": [{"role": "user", "content": "ab"}], "reasoning_budget_tokens": 3,
        "max_tokens": 20, "temperature": 0, "logit_bias": [[4, 100]],
    });
    let chat = app.post("/v1/chat/completions", &chat).await.json();
    assert_eq!(chat["choices"][0]["message"]["reasoning_content"], "aaa");
    let details = json!({"reasoning_tokens": 3 + N_CLOSING});
    assert_eq!(chat["usage"]["completion_tokens_details"], details);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_format_is_kept() {
    let app = App::new(options()).await;
    let schema = json!({"type": "object", "properties": {"city": {"enum": ["oslo"]}},
        "required": ["city"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "name": "place", "schema": schema, "strict": true});
    let mut body = saying("");
    body.as_object_mut().unwrap().remove("grammar");
    let fields = json!({"text": {"format": format}, "max_output_tokens": 600, "temperature": 0});
    let whole = app.post("/v1/responses", &with(body, fields)).await.json();
    assert_eq!(whole["text"]["format"], format);
    let text = whole["output"][0]["content"][0]["text"].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(text).unwrap(), json!({"city": "oslo"}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_cut_off_ends_with_completed() {
    let app = App::new(options()).await;
    let events = streamed(&app, with(endless(), json!({"max_output_tokens": 5}))).await;
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.completed");
    let response = &last["response"];
    assert_eq!(response["status"], "incomplete");
    assert_eq!(response["incomplete_details"], json!({"reason": "max_output_tokens"}));
    assert_eq!(response["output"][0]["content"][0]["text"], "aaaaa");
    assert_eq!(response["usage"]["output_tokens"], 5);
}

/// Codex shortens or repeats a request by the code in the stream; without a stream an error has its status.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_have_the_codes_that_agents_read() {
    let mut options = options();
    options.engine.n_parallel = 1;
    let app = Arc::new(App::new(options).await);
    let long = json!({"input": "ab ".repeat(20_000)});
    let answer = app.post("/v1/responses", &long).await;
    let error = answer.json()["error"].clone();
    assert_eq!((answer.status, &error["code"]), (400, &json!("context_length_exceeded")));
    let events = streamed(&app, long).await;
    assert_eq!(kinds(&events), ["created", "in_progress", "failed"]);
    let response = &events[2]["response"];
    assert_eq!(
        (&response["status"], &response["error"]["code"]),
        (&json!("failed"), &error["code"])
    );

    let answer = app.post("/v1/responses", &json!({"input": [{"content": "a"}]})).await;
    let message =
        "`input[0]`: expected an item with a `type`, or a message with a `role`, got neither";
    let expected = json!({"error": {
        "code": "invalid_request_error", "message": message, "param": "input[0]",
        "type": "invalid_request_error",
    }});
    assert_eq!((answer.status, answer.json()), (400, expected));
    let answer = app.get("/v1/responses").await;
    assert_eq!((answer.status, answer.header("allow")), (405, "POST"));

    let running = occupy(&app).await;
    let events = streamed(&app, with(saying("a"), json!({"timeout_ms": 50}))).await;
    assert_eq!(kinds(&events), ["created", "in_progress", "failed"]);
    let error = &events[2]["response"]["error"];
    assert_eq!(error["code"], "rate_limit_exceeded");
    assert!(error["message"].as_str().unwrap().ends_with("Please try again in 1s."), "{error}");
    running.abort();
}

/// Starts an endless stream, and waits until it is in the slot.
async fn occupy(app: &Arc<App>) -> tokio::task::JoinHandle<Vec<Value>> {
    let task = Arc::clone(app);
    let task = tokio::spawn(async move { streamed(&task, endless()).await });
    while !is_busy(app).await {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    task
}

async fn is_busy(app: &App) -> bool {
    app.get("/slots").await.json()[0]["is_processing"] == true
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_goes_away_frees_its_slot() {
    let mut options = options();
    options.engine.n_parallel = 1;
    let app = Arc::new(App::new(options).await);
    occupy(&app).await.abort();
    // Without an end by the client the text would go on for ever.
    while is_busy(&app).await {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let whole = app.post("/v1/responses", &saying("hello")).await.json();
    assert_eq!(whole["output"][0]["content"][0]["text"], "hello");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_in_a_stream_ends_it_with_failed() {
    let bomb = Bomb::default();
    let in_step = bomb.clone();
    let mut options = options();
    options.engine.on_step = Some(StepObserver::new(move |_| in_step.call()));
    let app = App::new(options).await;
    bomb.set(20);
    let events = streamed(&app, endless()).await;
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.failed");
    let response = &last["response"];
    let error = &response["error"];
    assert_eq!((&response["status"], &error["code"]), (&json!("failed"), &json!("server_error")));
    assert!(error["message"].as_str().unwrap().contains("boom"), "{error}");
    assert_eq!(response["output"][0]["status"], "incomplete");
    let text = joined(&events, "response.output_text.delta");
    assert!(!text.is_empty());
    assert_eq!(response["output"][0]["content"][0]["text"], text);
    let id = response["id"].as_str().unwrap();
    assert_eq!(app.get(&format!("/v1/responses/{id}")).await.status, 404);
    let whole = app.post("/v1/responses", &saying("hello")).await.json();
    assert_eq!(whole["status"], "completed");
}
