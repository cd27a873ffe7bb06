//! Traces, as a collector on loopback gets them.

use std::future::IntoFuture;
use std::net::TcpListener as StdListener;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::Request;
use axum::routing::post;
use futures_util::StreamExt;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Attribute;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use prost::Message;
use serde_json::{Value, json};
use stonechat_server::{ModelOption, ServerOptions, Traces, router};
use tokio::net::TcpListener;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tower::ServiceExt;

use crate::audio::{fox_upload, multilingual};
use crate::live_client::{Client, PATIENCE, Running, at_24_khz, english, fox, pcm16};
use crate::support::{App, language};

const TRACE_ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT_ID: &str = "00f067aa0ba902b7";
const CHAT: &str = "/v1/chat/completions";

/// A collector on loopback, and traces that it gets.
struct Collector {
    traces: Traces,
    requests: Arc<Mutex<Vec<ExportTraceServiceRequest>>>,
}

impl Collector {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests: Arc<Mutex<Vec<ExportTraceServiceRequest>>> = Arc::default();
        let kept = Arc::clone(&requests);
        let receive = move |body: Bytes| async move {
            kept.lock().unwrap().push(ExportTraceServiceRequest::decode(body).unwrap());
        };
        let collector = Router::new().route("/v1/traces", post(receive));
        tokio::spawn(axum::serve(listener, collector).into_future());
        Self { traces: Traces::start(Some(&url)).unwrap().unwrap(), requests }
    }

    /// Stops the traces; returns what the collector got.
    async fn requests(&self) -> Vec<ExportTraceServiceRequest> {
        let traces = self.traces.clone();
        spawn_blocking(move || traces.stop()).await.unwrap();
        self.requests.lock().unwrap().clone()
    }

    /// Stops the traces; returns all spans.
    async fn spans(&self) -> Vec<Span> {
        let requests = self.requests().await;
        let resources = requests.into_iter().flat_map(|request| request.resource_spans);
        let scopes = resources.flat_map(|resource| resource.scope_spans);
        scopes.flat_map(|scope| scope.spans).collect()
    }
}

/// A server that sends its traces to a collector.
struct Traced {
    app: App,
    collector: Collector,
}

impl Traced {
    async fn new(models: Vec<ModelOption>) -> Self {
        let traced = Self::closed(models).await;
        traced.app.open().await;
        traced
    }

    /// A server whose models are not open.
    async fn closed(models: Vec<ModelOption>) -> Self {
        let collector = Collector::start().await;
        let traces = Some(collector.traces.clone());
        let app = App::closed(ServerOptions { models, traces, ..ServerOptions::default() });
        Self { app, collector }
    }

    async fn spans(&self) -> Vec<Span> {
        self.collector.spans().await
    }
}

fn chat(fields: Value) -> Value {
    let mut body = json!({
        "messages": [{"role": "user", "content": "ab"}],
        "max_tokens": 8,
        "temperature": 0,
        "ignore_eos": true,
    });
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

/// A request of a client that has a trace of its own.
fn request(path: &str, flags: &str, body: &Value) -> Request<Body> {
    Request::post(path)
        .header("content-type", "application/json")
        .header("traceparent", format!("00-{TRACE_ID}-{PARENT_ID}-{flags}"))
        .header("x-request-id", "my-id")
        .body(Body::from(body.to_string()))
        .unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The only span of a name.
#[track_caller]
fn find<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    let mut found = spans.iter().filter(|span| span.name == name);
    let first = found.next().unwrap_or_else(|| panic!("no {name} in {spans:#?}"));
    assert!(found.next().is_none(), "several {name}: {spans:#?}");
    first
}

#[track_caller]
fn attribute(span: &Span, key: &str) -> Option<Attribute> {
    let mut found = span.attributes.iter().filter(|attribute| attribute.key == key);
    let first = found.next()?.value.clone()?.value;
    assert!(found.next().is_none(), "several {key}");
    first
}

#[track_caller]
fn text(span: &Span, key: &str) -> String {
    match attribute(span, key) {
        Some(Attribute::StringValue(text)) => text,
        Some(Attribute::ArrayValue(array)) => match array.values[0].value.clone() {
            Some(Attribute::StringValue(text)) if array.values.len() == 1 => text,
            other => panic!("{key}: {other:?}"),
        },
        other => panic!("{key}: {other:?}"),
    }
}

#[track_caller]
fn count(span: &Span, key: &str) -> i64 {
    match attribute(span, key) {
        Some(Attribute::IntValue(n)) => n,
        other => panic!("{key}: {other:?}"),
    }
}

#[track_caller]
fn seconds(span: &Span, key: &str) -> f64 {
    match attribute(span, key) {
        Some(Attribute::DoubleValue(seconds)) => seconds,
        other => panic!("{key}: {other:?}"),
    }
}

fn length(span: &Span) -> f64 {
    (span.end_time_unix_nano - span.start_time_unix_nano) as f64 / 1e9
}

/// Asserts that spans follow each other within their parent.
#[track_caller]
fn check_children(parent: &Span, children: &[&Span]) {
    let mut time = parent.start_time_unix_nano;
    for child in children {
        assert_eq!(child.trace_id, parent.trace_id);
        assert_eq!(child.parent_span_id, parent.span_id, "{}", child.name);
        assert!(child.start_time_unix_nano >= time, "{}", child.name);
        assert!(child.end_time_unix_nano >= child.start_time_unix_nano, "{}", child.name);
        time = child.end_time_unix_nano;
    }
    assert!(time <= parent.end_time_unix_nano, "{}", parent.name);
}

#[track_caller]
fn check_status(span: &Span, expected: StatusCode) {
    let status = span.status.as_ref().map_or(StatusCode::Unset, |status| status.code());
    assert_eq!(status, expected, "{span:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_text_has_the_trace_of_its_client() {
    for stream in [false, true] {
        let traced = Traced::new(vec![language("m")]).await;
        let body = json!({"stream": stream, "stream_options": {"include_usage": true}});
        let answer = traced.app.send(request(CHAT, "01", &chat(body))).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let usage: Value = if stream {
            let mut chunks = answer.text.lines().filter_map(|line| line.strip_prefix("data: "));
            let last = chunks.rfind(|chunk| *chunk != "[DONE]").unwrap();
            serde_json::from_str::<Value>(last).unwrap()["usage"].clone()
        } else {
            answer.json()["usage"].clone()
        };
        let spans = traced.spans().await;
        assert_eq!(spans.len(), 5, "{spans:#?}");

        let root = find(&spans, "POST /v1/chat/completions");
        assert_eq!(
            (hex(&root.trace_id), hex(&root.parent_span_id)),
            (TRACE_ID.into(), PARENT_ID.into())
        );
        assert_eq!(root.kind(), SpanKind::Server);
        assert_eq!(text(root, "http.request.method"), "POST");
        assert_eq!(text(root, "http.route"), CHAT);
        assert_eq!(text(root, "http.response.header.x-request-id"), "my-id");
        assert_eq!(count(root, "http.response.status_code"), 200);
        check_status(root, StatusCode::Unset);

        let work = find(&spans, "llm_request");
        check_children(root, &[work]);
        let parts = ["queue", "prefill", "decode"].map(|name| find(&spans, name));
        check_children(work, &parts);
        check_status(work, StatusCode::Unset);
        for (key, expected) in [
            ("gen_ai.operation.name", "chat"),
            ("gen_ai.request.id", "my-id"),
            ("gen_ai.request.model", "m"),
            ("gen_ai.response.model", "m"),
            ("gen_ai.response.finish_reasons", "length"),
        ] {
            assert_eq!(text(work, key), expected, "{key}");
        }
        for key in ["gen_ai.usage.prompt_tokens", "gen_ai.usage.input_tokens"] {
            assert_eq!(count(work, key), usage["prompt_tokens"].as_i64().unwrap(), "{key}");
        }
        for key in ["gen_ai.usage.completion_tokens", "gen_ai.usage.output_tokens"] {
            assert_eq!(count(work, key), usage["completion_tokens"].as_i64().unwrap(), "{key}");
        }
        assert_eq!(count(work, "gen_ai.request.max_tokens"), 8);
        for (key, expected) in [
            ("gen_ai.latency.time_in_queue", length(parts[0])),
            ("gen_ai.latency.time_in_model_prefill", length(parts[1])),
            ("gen_ai.latency.time_in_model_decode", length(parts[2])),
            ("gen_ai.latency.time_to_first_token", length(parts[0]) + length(parts[1])),
            ("gen_ai.latency.e2e", length(work)),
        ] {
            assert!((seconds(work, key) - expected).abs() < 1e-6, "{key}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_without_a_trace_begins_one_and_probes_have_none() {
    let traced = Traced::new(vec![language("m")]).await;
    assert_eq!(traced.app.get("/health").await.status, 200);
    let body = json!({"prompt": ["ab", "cd"], "max_tokens": 2, "ignore_eos": true});
    assert_eq!(traced.app.post("/v1/completions", &body).await.status, 200);
    let requests = traced.collector.requests().await;
    let resource = requests[0].resource_spans[0].resource.clone().unwrap();
    let names: Vec<&str> = resource.attributes.iter().map(|each| each.key.as_str()).collect();
    assert!(names.contains(&"service.name") && names.contains(&"service.version"), "{names:?}");
    let spans = traced.spans().await;
    let root = find(&spans, "POST /v1/completions");
    assert!(root.parent_span_id.is_empty() && root.trace_id.iter().any(|&byte| byte != 0));
    // One span a prompt.
    let texts: Vec<&Span> = spans.iter().filter(|span| span.name == "llm_request").collect();
    assert_eq!((texts.len(), spans.len()), (2, 9), "{spans:#?}");
    for work in texts {
        assert_eq!(work.parent_span_id, root.span_id);
        assert_eq!(text(work, "gen_ai.operation.name"), "text_completion");
        assert_eq!(count(work, "gen_ai.usage.output_tokens"), 2);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_sample_has_no_spans() {
    let traced = Traced::new(vec![language("m")]).await;
    let answer = traced.app.send(request(CHAT, "00", &chat(json!({})))).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(traced.spans().await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_have_the_status_of_an_error() {
    let traced = Traced::new(vec![language("m")]).await;
    let long = chat(json!({"messages": [{"role": "user", "content": "ab ".repeat(20_000)}]}));
    let answer = traced.app.send(request(CHAT, "01", &long)).await;
    assert_eq!((answer.status, answer.kind().as_str()), (400, "exceed_context_size_error"));
    let spans = traced.spans().await;
    let work = find(&spans, "llm_request");
    check_status(work, StatusCode::Error);
    assert_eq!(work.status.as_ref().unwrap().message, answer.message());
    assert_eq!(text(work, "error.type"), "exceed_context_size_error");
    assert_eq!(text(work, "gen_ai.response.finish_reasons"), "error");
    assert_eq!(attribute(work, "gen_ai.latency.time_to_first_token"), None);
    check_children(work, &[find(&spans, "queue")]);
    // An error of the client is none of the server.
    let root = find(&spans, "POST /v1/chat/completions");
    check_status(root, StatusCode::Unset);
    assert_eq!(count(root, "http.response.status_code"), 400);

    let traced = Traced::closed(vec![language("m")]).await;
    let answer = traced.app.send(request(CHAT, "01", &chat(json!({})))).await;
    assert_eq!(answer.status, 503);
    let spans = traced.spans().await;
    assert_eq!(spans.len(), 1, "{spans:#?}");
    check_status(&spans[0], StatusCode::Error);
    assert_eq!(text(&spans[0], "error.type"), "503");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_goes_away_has_an_aborted_request() {
    let traced = Traced::new(vec![language("m")]).await;
    let service = router(traced.app.state().clone());
    let body = chat(json!({"stream": true}));
    let response = service.oneshot(request(CHAT, "01", &body)).await.unwrap();
    let mut body = response.into_body().into_data_stream();
    assert!(body.next().await.unwrap().unwrap().starts_with(b"data: "));
    drop(body);
    let spans = traced.spans().await;
    let root = find(&spans, "POST /v1/chat/completions");
    let work = find(&spans, "llm_request");
    check_children(root, &[work]);
    assert_eq!(text(work, "gen_ai.response.finish_reasons"), "abort");
    for span in [root, work] {
        check_status(span, StatusCode::Error);
        assert_eq!(text(span, "error.type"), "abort");
    }
    assert_eq!(count(root, "http.response.status_code"), 499);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_is_received_waits_and_is_transcribed() {
    let traced = Traced::new(vec![multilingual()]).await;
    let mut upload = fox_upload();
    let parent = format!("00-{TRACE_ID}-{PARENT_ID}-01");
    upload.headers_mut().insert("traceparent", parent.parse().unwrap());
    let answer = traced.app.send(upload).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let spans = traced.spans().await;
    assert_eq!(spans.len(), 5, "{spans:#?}");
    let root = find(&spans, "POST /v1/audio/transcriptions");
    assert_eq!(hex(&root.parent_span_id), PARENT_ID);
    let work = find(&spans, "speech_request");
    check_children(root, &[find(&spans, "receive_audio"), work]);
    let (queue, transcribe) = (find(&spans, "queue"), find(&spans, "transcribe"));
    check_children(work, &[queue, transcribe]);
    assert!(length(transcribe) > 0.0);
    check_status(work, StatusCode::Unset);
    assert_eq!(text(work, "gen_ai.request.model"), "ears");
    assert_eq!(text(work, "gen_ai.response.finish_reasons"), "stop");
    let usage = answer.json()["usage"]["seconds"].as_f64();
    assert_eq!(Some(seconds(work, "stonechat.audio.seconds").ceil()), usage);
    assert!((seconds(work, "gen_ai.latency.time_in_queue") - length(queue)).abs() < 1e-6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_session_has_spans_of_its_utterances() {
    let collector = Collector::start().await;
    let traces = Some(collector.traces.clone());
    let server = Running::start(ServerOptions { traces, ..english() }).await;
    let mut client = Client::connect(&server).await;
    let audio = [fox(), vec![0.0; 24_000]].concat();
    client.append(&pcm16(&at_24_khz(&audio))).await;
    client.utterance().await;
    // All audio has been taken by the answer, which is that nothing is left.
    client.commit().await;
    assert_eq!(client.event().await["type"], "error");
    drop(client);
    // The task of the session ends after its connection.
    let end =
        "stonechat:audio_request_success_total{model_name=\"tiny.en\",finished_reason=\"stop\"} 1";
    let ended = async {
        while !server.state.metrics().text().contains(end) {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, ended).await.unwrap();
    let spans = collector.spans().await;
    assert_eq!(spans.len(), 3, "{spans:#?}");
    let root = find(&spans, "GET /v1/realtime");
    assert_eq!(count(root, "http.response.status_code"), 101);
    let session = find(&spans, "live_session");
    assert_eq!(session.parent_span_id, root.span_id);
    check_status(session, StatusCode::Unset);
    assert_eq!(text(session, "gen_ai.request.model"), "tiny.en");
    assert_eq!(text(session, "gen_ai.response.finish_reasons"), "stop");
    let n_samples = seconds(session, "stonechat.audio.seconds") * 16_000.0;
    assert!((n_samples - audio.len() as f64).abs() < 1600.0, "{n_samples}");
    let utterance = find(&spans, "utterance");
    check_children(session, &[utterance]);
    let first = seconds(utterance, "stonechat.latency.time_to_first_text");
    assert!(first > 0.0 && first <= length(utterance), "{first}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_collector_disturbs_no_request() {
    let listener = StdListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let traces = Traces::start(Some(&url)).unwrap();
    let models = vec![language("m")];
    let app =
        App::new(ServerOptions { models, traces: traces.clone(), ..ServerOptions::default() });
    let app = app.await;
    for _ in 0..3 {
        let answer = app.send(request(CHAT, "01", &chat(json!({})))).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    spawn_blocking(move || traces.unwrap().stop()).await.unwrap();
    // Traces that have stopped drop spans.
    let answer = app.send(request(CHAT, "01", &chat(json!({})))).await;
    assert_eq!(answer.status, 200, "{answer:?}");
}
