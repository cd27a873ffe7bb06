//! Clients that stall, pages of other sites, bodies and keys that are refused.

use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use serde_json::json;
use stonechat_server::{Server, ServerError, ServerOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::{App, language, speech, test_data};

/// Long enough for any machine; nothing waits for it unless the test fails.
const PATIENCE: Duration = Duration::from_secs(300);

/// Starts a server on loopback; returns its address.
pub(crate) async fn start(mut options: ServerOptions) -> String {
    options.port = 0;
    options.engine.device = stonechat::Device::Cpu;
    options.engine.n_threads = 1;
    let server = Server::bind(options).await.unwrap();
    let address = server.addresses().remove(0).replace("http://", "");
    let state = server.state().clone();
    tokio::spawn(server.run(std::future::pending()));
    state.ready().await;
    address
}

/// Sends a text; returns all that comes back until the end of the connection.
pub(crate) async fn talk(address: &str, text: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
    String::from_utf8(answer).unwrap()
}

fn request(line: &str, headers: &str) -> String {
    format!("{line} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n")
}

/// An upload whose file never ends.
const STALLED: &str = "POST /v1/audio/transcriptions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\
    Content-Type: multipart/form-data; boundary=b\r\n\r\n\
    --b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\nRIFF";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_uploads_hold_no_threads() {
    let models = vec![speech("s")];
    let address = start(ServerOptions { models, ..ServerOptions::default() }).await;
    let mut stalled = Vec::new();
    for _ in 0..600 {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        stream.write_all(STALLED.as_bytes()).await.unwrap();
        stalled.push(stream);
    }
    let answer = talk(&address, &request("GET /health", "Host: localhost\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    // A whole upload is decoded meanwhile.
    let file = std::fs::read(test_data("audio/quick_brown_fox.wav")).unwrap();
    let mut body = b"--b\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n".to_vec();
    body.extend_from_slice(&file);
    body.extend_from_slice(b"\r\n--b--\r\n");
    let mut stream = TcpStream::connect(&address).await.unwrap();
    let headers = format!(
        "Host: localhost\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: {}\r\n",
        body.len()
    );
    let head = request("POST /v1/audio/transcriptions", &headers);
    stream.write_all(&[head.as_bytes(), &body].concat()).await.unwrap();
    let mut answer = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    drop(stalled);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_that_stall_get_408() {
    let short = Duration::from_millis(50);
    let models = || vec![language("m"), speech("s")];
    let json = "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{";
    for options in [
        ServerOptions { models: models(), body_idle_timeout: short, ..ServerOptions::default() },
        ServerOptions { models: models(), body_timeout: short, ..ServerOptions::default() },
    ] {
        let address = start(options).await;
        for text in [json, STALLED] {
            let answer = talk(&address, text).await;
            assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
            assert!(answer.contains("did not arrive in time"), "{answer}");
        }
    }
    let request_timeout = Some(short);
    let options = ServerOptions { models: models(), request_timeout, ..ServerOptions::default() };
    let answer = talk(&start(options).await, STALLED).await;
    let status = answer.get(9..12).unwrap_or_default();
    assert!(["408", "503"].contains(&status), "{answer}");
}

/// A server with the key `k`.
async fn start_with_key() -> String {
    let models = vec![language("m"), speech("s")];
    let api_keys = vec!["k".to_owned()];
    start(ServerOptions { models, api_keys, max_body_size: 1 << 20, ..Default::default() }).await
}

/// Clients that send the whole body before they read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_is_read_after_a_large_body() {
    let address = start_with_key().await;
    // More than the buffers of both sockets hold.
    let body = "x".repeat(16 << 20);
    let key = "Authorization: Bearer k\r\n";
    for (line, headers, expected) in [
        ("POST /v1/audio/transcriptions", "Authorization: Bearer wrong\r\n", "401"),
        ("POST /v1/audio/transcriptions", "", "401"),
        ("POST /v1/nowhere", key, "404"),
        ("POST /v1/models", key, "405"),
        ("POST /tokenize", key, "413"),
        ("POST /tokenize", "X-Api-Key: k\r\nContent-Encoding: gzip\r\n", "415"),
    ] {
        let headers = format!("Host: localhost\r\n{headers}Content-Length: {}\r\n", body.len());
        let answer = talk(&address, &(request(line, &headers) + &body)).await;
        assert_eq!(answer.get(9..12), Some(expected), "{line} {headers}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_body_without_end_is_cut_off() {
    let address = start_with_key().await;
    let mut stream = TcpStream::connect(&address).await.unwrap();
    let head = request("POST /tokenize", "Host: localhost\r\nContent-Length: 1000000000000\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let sending = async {
        let (part, mut n_parts) = (vec![b'x'; 1 << 20], 0);
        while stream.write_all(&part).await.is_ok() {
            n_parts += 1;
        }
        n_parts
    };
    let n_parts = timeout(PATIENCE, sending).await.unwrap();
    // The limit, and the buffers of the sockets.
    assert!((64..128).contains(&n_parts), "{n_parts} MiB");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_asks_first_is_refused_before_its_body() {
    let address = start_with_key().await;
    let headers = "Host: localhost\r\nContent-Length: 1000\r\nExpect: 100-continue\r\n";
    let answer = talk(&address, &request("POST /v1/audio/transcriptions", headers)).await;
    assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recordings_share_a_budget_of_memory() {
    let form = |bytes: &[u8]| {
        let head = b"--b\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n".to_vec();
        let body = [head, bytes.to_vec(), b"\r\n--b--\r\n".to_vec()].concat();
        let request = Request::post("/v1/audio/transcriptions");
        let request = request.header("content-type", "multipart/form-data; boundary=b");
        request.body(Body::from(body)).unwrap()
    };
    let file = std::fs::read(test_data("audio/quick_brown_fox.wav")).unwrap();
    let app = |max_audio_memory| {
        let models = vec![speech("s")];
        App::new(ServerOptions { models, max_audio_memory, ..ServerOptions::default() })
    };
    let small = app(64 << 10).await;
    let answer = small.send(form(&file)).await;
    assert_eq!(answer.status, 413, "{answer:?}");
    // Refused ones give back what they had.
    let enough = app((file.len() as u64 + (1 << 20)) * 3).await;
    for _ in 0..8 {
        assert_eq!(enough.send(form(&file)).await.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_other_sites_are_refused_on_loopback() {
    let address = start(ServerOptions { models: vec![language("m")], ..Default::default() }).await;
    for (headers, expected) in [
        ("Host: localhost\r\n", "200"),
        ("Host: evil.example\r\n", "403"),
        ("Host: localhost\r\nOrigin: https://evil.example\r\n", "403"),
        ("Host: localhost\r\nOrigin: null\r\n", "403"),
        ("Host: localhost\r\nOrigin: http://localhost:3000\r\n", "200"),
    ] {
        let answer = talk(&address, &request("GET /v1/models", headers)).await;
        assert_eq!(answer.get(9..12), Some(expected), "{headers}: {answer}");
    }
    let answer = talk(&address, &request("GET /health", "Host: evil.example\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_are_json_by_name() {
    let app = App::language().await;
    let send = async |headers: &[(&str, &str)]| {
        let mut request = Request::post("/tokenize");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = Body::from(json!({"content": "ab"}).to_string());
        app.send(request.body(body).unwrap()).await.status
    };
    let form = ("content-type", "application/x-www-form-urlencoded");
    assert_eq!(send(&[]).await, 200);
    assert_eq!(send(&[form]).await, 200);
    assert_eq!(send(&[("content-type", "application/json; charset=utf-8")]).await, 200);
    assert_eq!(send(&[("content-type", "application/vnd.api+json")]).await, 200);
    for media_type in ["text/plain", "text/plain;charset=UTF-8", "multipart/form-data; boundary=b"]
    {
        assert_eq!(send(&[("content-type", media_type)]).await, 415, "{media_type}");
    }
    for browser in [("origin", "http://localhost:3000"), ("sec-fetch-site", "cross-site")] {
        assert_eq!(send(&[form, browser]).await, 415, "{browser:?}");
        assert_eq!(send(&[browser]).await, 415, "{browser:?}");
    }
    let json = ("content-type", "application/json");
    assert_eq!(send(&[json, ("content-encoding", "gzip")]).await, 415);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty_keys_do_not_start_a_server() {
    for key in ["", "  "] {
        let api_keys = vec!["one".to_owned(), key.to_owned()];
        let options = ServerOptions { api_keys, port: 0, ..ServerOptions::default() };
        let error = Server::bind(options).await.unwrap_err();
        assert!(matches!(error, ServerError::EmptyKey), "{error}");
    }
}

/// A slow reader, whose answers fill the buffers of its socket, is cut off and makes room for the next connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_do_not_read_are_cut_off() {
    let write_timeout = Duration::from_millis(50);
    let models = vec![language("m")];
    let options = ServerOptions { models, write_timeout, max_connections: 1, ..Default::default() };
    let address = start(options).await;
    let (_reader, mut writer) = TcpStream::connect(&address).await.unwrap().into_split();
    let sending = tokio::spawn(async move {
        let request = "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n";
        while writer.write_all(request.as_bytes()).await.is_ok() {}
    });
    let answer = talk(&address, &request("GET /health", "Host: localhost\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    timeout(PATIENCE, sending).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invented_methods_make_no_series_of_metrics() {
    let options =
        ServerOptions { models: vec![language("m")], metrics: true, ..Default::default() };
    let app = App::new(options).await;
    for i in 0..10_000 {
        let method = format!("M{i}");
        let request = Request::builder().method(method.as_str()).uri("/v1/models");
        assert_eq!(app.send(request.body(Body::empty()).unwrap()).await.status, 405);
    }
    let metrics = app.get("/metrics").await.text;
    let lines = metrics.lines().filter(|line| line.contains("method=")).count();
    assert!((1..50).contains(&lines), "{lines}");
    assert!(!metrics.contains("M9999"));
}
