//! Keys, CORS, identifiers, sockets, TLS, limits of connections, shutdown.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use serde_json::json;
use stonechat::Models;
use stonechat_server::{AppState, Server, ServerError, ServerOptions, TlsFiles};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::support::{Answer, App, language, test_data};

const HEALTH: &str = "GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

fn options() -> ServerOptions {
    ServerOptions { models: vec![language("m")], ..ServerOptions::default() }
}

async fn get_with(app: &App, path: &str, headers: &[(&str, &str)]) -> Answer {
    let mut request = Request::get(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    app.send(request.body(Body::empty()).unwrap()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_needed_but_for_probes() {
    let api_keys = vec!["one".to_owned(), "two".to_owned()];
    let app = App::new(ServerOptions { api_keys, ..options() }).await;
    let refused = json!({"error": {
        "message": "Invalid API Key", "type": "authentication_error", "code": 401,
    }});
    for path in ["/v1/models", "/props", "/nothing", "/openapi.json"] {
        let answer = app.get(path).await;
        assert_eq!((answer.status, answer.json()), (401, refused.clone()), "{path}");
        let answer = get_with(&app, path, &[("authorization", "Bearer three")]).await;
        assert_eq!(answer.status, 401, "{path}");
    }
    for path in ["/health", "/v1/health"] {
        assert_eq!(app.get(path).await.status, 200, "{path}");
    }
    for header in [("authorization", "Bearer two"), ("x-api-key", "one")] {
        assert_eq!(get_with(&app, "/v1/models", &[header]).await.status, 200, "{header:?}");
    }
    // The body is not read before the key is known.
    let answer = app.post("/tokenize", &json!({"content": 1})).await;
    assert_eq!(answer.status, 401);
}

fn preflight(origin: &str) -> Request<Body> {
    let request = Request::options("/v1/models").header("origin", origin);
    let request = request.header("access-control-request-method", "POST");
    let request = request.header("access-control-request-headers", "authorization,x-stainless-os");
    request.body(Body::empty()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn browsers_of_listed_origins_may_call() {
    const ORIGIN: &str = "access-control-allow-origin";
    let app = App::new(options()).await;
    let answer = get_with(&app, "/v1/models", &[("origin", "https://a.example")]).await;
    assert_eq!((answer.status, answer.header(ORIGIN)), (200, ""));
    let answer = app.send(preflight("https://a.example")).await;
    assert_eq!((answer.status, answer.header(ORIGIN)), (405, ""));

    let (cors_origins, api_keys) = (vec!["https://a.example".to_owned()], vec!["k".to_owned()]);
    let app = App::new(ServerOptions { cors_origins, api_keys, ..options() }).await;
    let answer = app.send(preflight("https://a.example")).await;
    assert_eq!((answer.status, answer.header(ORIGIN)), (200, "https://a.example"));
    assert_eq!(answer.header("access-control-allow-headers"), "authorization,x-stainless-os");
    assert_eq!(app.send(preflight("https://b.example")).await.header(ORIGIN), "");
    // A refused key is readable by the page.
    let answer = get_with(&app, "/v1/models", &[("origin", "https://a.example")]).await;
    assert_eq!((answer.status, answer.header(ORIGIN)), (401, "https://a.example"));

    let cors_origins = vec!["*".to_owned()];
    let app = App::new(ServerOptions { cors_origins, ..options() }).await;
    assert_eq!(app.send(preflight("https://b.example")).await.header(ORIGIN), "*");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_name_the_server_and_the_request() {
    let app = App::new(options()).await;
    for path in ["/health", "/nothing"] {
        let answer = app.get(path).await;
        assert_eq!(answer.header("server"), concat!("stonechat/", env!("CARGO_PKG_VERSION")));
        assert!(answer.header("x-request-id").starts_with("req-"), "{answer:?}");
        let answer = get_with(&app, path, &[("x-request-id", "my-id")]).await;
        assert_eq!(answer.header("x-request-id"), "my-id");
        let long = "x".repeat(1000);
        let answer = get_with(&app, path, &[("x-request-id", &long)]).await;
        assert!(answer.header("x-request-id").starts_with("req-"), "{answer:?}");
    }
}

/// A server on sockets.
struct Running {
    address: String,
    state: AppState,
    stop: oneshot::Sender<()>,
    server: JoinHandle<Result<(), ServerError>>,
}

impl Running {
    async fn new(mut options: ServerOptions) -> Self {
        options.port = 0;
        options.engine.device = stonechat::Device::Cpu;
        options.engine.n_threads = 1;
        let server = Server::bind(options).await.unwrap();
        let address = server.addresses().remove(0);
        let address = address.rsplit("://").next().unwrap().to_owned();
        let state = server.state().clone();
        let (stop, stopped) = oneshot::channel();
        let server = tokio::spawn(server.run(async {
            // A test that ends drops the sender.
            let _ = stopped.await;
        }));
        while !state.is_ready() {
            assert!(!server.is_finished());
            sleep(Duration::from_millis(5)).await;
        }
        Self { address, state, stop, server }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(&self.address).await.unwrap()
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.server.await.unwrap().unwrap();
    }
}

/// Sends a request and reads until the server closes the connection.
async fn talk(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: impl AsRef<str>) -> String {
    stream.write_all(request.as_ref().as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

fn tokenize(model: &str) -> String {
    let body = json!({"model": model, "content": "ab"}).to_string();
    let n = body.len();
    format!(
        "POST /tokenize HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {n}\r\n\r\n{body}"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tcp_and_unix_sockets_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.sock");
    let path = path.to_str().unwrap();
    let hosts = vec!["127.0.0.1".to_owned(), path.to_owned()];
    let running = Running::new(ServerOptions { hosts: hosts.clone(), ..options() }).await;
    let answer = talk(running.connect().await, HEALTH).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("{\"status\":\"ok\"}"));
    let stream = UnixStream::connect(path).await.unwrap();
    assert_eq!(talk(stream, HEALTH).await.lines().next(), Some("HTTP/1.1 200 OK"));

    // Both are in use.
    let port = running.address.rsplit(':').next().unwrap().parse().unwrap();
    let busy = ServerOptions { hosts: vec!["127.0.0.1".to_owned()], port, ..options() };
    let error = Server::bind(busy).await.unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot listen on 127.0.0.1:{port}: ")), "{error}");
    let busy = ServerOptions { hosts: vec![path.to_owned()], ..options() };
    let error = Server::bind(busy).await.unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot listen on {path}: ")), "{error}");
    running.stop().await;
    assert!(!Path::new(path).exists());

    // A killed server leaves the file of its socket.
    drop(std::os::unix::net::UnixListener::bind(path).unwrap());
    assert!(Path::new(path).exists());
    let running = Running::new(ServerOptions { hosts, ..options() }).await;
    let stream = UnixStream::connect(path).await.unwrap();
    assert_eq!(talk(stream, HEALTH).await.lines().next(), Some("HTTP/1.1 200 OK"));
    running.stop().await;
}

fn tls_files() -> TlsFiles {
    let file = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/server").join(name);
    TlsFiles { key: file("localhost.key.pem"), certificate: file("localhost.crt.pem") }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_is_served() {
    let running = Running::new(ServerOptions { tls: Some(tls_files()), ..options() }).await;
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(tls_files().certificate).unwrap()).unwrap();
    let client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = TlsConnector::from(Arc::new(client));
    let name = ServerName::try_from("localhost").unwrap();
    // A client that never begins the handshake holds nobody up.
    let silent = running.connect().await;
    let stream = connector.connect(name, running.connect().await).await.unwrap();
    assert_eq!(talk(stream, HEALTH).await.lines().next(), Some("HTTP/1.1 200 OK"));
    drop(silent);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_tls_are_checked() {
    let bind = |tls| Server::bind(ServerOptions { tls: Some(tls), port: 0, ..options() });
    let missing = TlsFiles { key: "no such.pem".into(), ..tls_files() };
    let error = bind(missing).await.unwrap_err().to_string();
    assert!(error.starts_with("cannot use `no such.pem` for TLS: "), "{error}");
    let swapped = TlsFiles { key: tls_files().certificate, certificate: tls_files().key };
    let error = bind(swapped).await.unwrap_err().to_string();
    assert!(error.ends_with("expected a certificate in PEM, got none"), "{error}");
    // The file that is wrong is named: a key of another certificate, and a file without a key.
    let other = tls_files().key.with_file_name("other.key.pem");
    for (key, expected) in [
        (other.clone(), "expected the key of the certificate `"),
        (tls_files().certificate, "expected a private key in PEM: "),
    ] {
        let start = format!("cannot use `{}` for TLS: {expected}", key.display());
        let error = bind(TlsFiles { key, ..tls_files() }).await.unwrap_err().to_string();
        assert!(error.starts_with(&start), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_and_tls_are_replaced_while_a_server_runs() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let files = TlsFiles { key: file("key"), certificate: file("certificate") };
    let write = |from: &TlsFiles| {
        std::fs::copy(&from.key, &files.key).unwrap();
        std::fs::copy(&from.certificate, &files.certificate).unwrap();
    };
    write(&tls_files());
    let options = ServerOptions { tls: Some(files.clone()), port: 0, ..options() };
    let server = Server::bind(options).await.unwrap();
    let state = server.state();
    let held = |state: &AppState| state.reload_tls().map_err(|e| e.to_string());
    assert_eq!(held(state), Ok(()));
    std::fs::write(&files.certificate, "").unwrap();
    assert!(held(state).unwrap_err().ends_with("expected a certificate in PEM, got none"));
    write(&tls_files());
    assert_eq!(held(state), Ok(()));

    let app = App::new(ServerOptions { api_keys: vec!["old".to_owned()], ..self::options() }).await;
    let status = async |key| get_with(&app, "/v1/models", &[("x-api-key", key)]).await.status;
    assert_eq!((status("old").await, status("new").await), (200, 401));
    app.state().set_api_keys(&["new".to_owned()]).unwrap();
    assert_eq!((status("old").await, status("new").await), (401, 200));
    assert!(matches!(app.state().set_api_keys(&[]), Err(ServerError::NoKeys)));
    assert_eq!(status("").await, 401);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_sends_no_headers_is_cut_off() {
    let header_timeout = Duration::from_millis(100);
    let running = Running::new(ServerOptions { header_timeout, ..options() }).await;
    let answer = timeout(Duration::from_secs(20), talk(running.connect().await, "GET /hea")).await;
    assert!(!answer.unwrap().contains("200"));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn further_connections_wait() {
    let running = Running::new(ServerOptions { max_connections: 1, ..options() }).await;
    let first = running.connect().await;
    // The first is accepted before the second connects.
    sleep(Duration::from_millis(50)).await;
    let second = tokio::spawn(talk(running.connect().await, HEALTH));
    sleep(Duration::from_millis(100)).await;
    assert!(!second.is_finished());
    drop(first);
    assert!(second.await.unwrap().starts_with("HTTP/1.1 200 OK"));
    running.stop().await;
}

/// A server with two models and memory for one, which is in use.
async fn crowded(
    options: ServerOptions,
) -> (Running, stonechat_server::LanguageGuard, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a.gguf", "b.gguf"] {
        std::fs::copy(test_data("golden/llm/llama.gguf"), folder.path().join(name)).unwrap();
    }
    let installed = Some(Models::at(folder.path()));
    let options =
        ServerOptions { models: Vec::new(), installed, models_memory: Some(1), ..options };
    let running = Running::new(options).await;
    let guard = running.state.language(Some("a")).await.unwrap();
    (running, guard, folder)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_lets_running_requests_end() {
    let (running, guard, _folder) = crowded(options()).await;
    let request = tokio::spawn(talk(running.connect().await, tokenize("b")));
    let idle = running.connect().await;
    sleep(Duration::from_millis(200)).await;
    let Running { address, stop, server, state } = running;
    stop.send(()).unwrap();
    while !state.is_stopping() {
        sleep(Duration::from_millis(5)).await;
    }
    sleep(Duration::from_millis(100)).await;
    // No new connection; an idle one is closed.
    assert!(TcpStream::connect(&address).await.is_err());
    assert_eq!(talk(idle, "").await, "");
    assert!(!request.is_finished() && !server.is_finished());
    drop(guard);
    let answer = request.await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    server.await.unwrap().unwrap();
}

/// Reads a response with the body of `/health`.
async fn read_health(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    while !text.contains("\r\n\r\n{\"") || !text.ends_with('}') {
        let mut buffer = [0; 1024];
        let n = stream.read(&mut buffer).await.unwrap();
        assert!(n > 0, "{text}");
        text.push_str(str::from_utf8(&buffer[..n]).unwrap());
    }
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_answers_requests_that_are_on_their_way() {
    let keep_alive = HEALTH.replace("Connection: close\r\n", "");
    // The three connections below, and one more that waits in the queue of the socket.
    let running = Running::new(ServerOptions { max_connections: 3, ..options() }).await;
    let (mut used, mut fresh) = (running.connect().await, running.connect().await);
    used.write_all(keep_alive.as_bytes()).await.unwrap();
    let answer = read_health(&mut used).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK") && !answer.contains("connection: close"));
    let third = running.connect().await;
    sleep(Duration::from_millis(50)).await;
    let mut queued = running.connect().await;
    queued.write_all(keep_alive.as_bytes()).await.unwrap();

    let Running { address, stop, server, state } = running;
    stop.send(()).unwrap();
    while !state.is_stopping() {
        sleep(Duration::from_millis(1)).await;
    }
    for stream in [&mut used, &mut fresh] {
        stream.write_all(keep_alive.as_bytes()).await.unwrap();
        let answer = read_health(stream).await;
        assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("connection: close"));
        // The server has closed it.
        assert_eq!(talk(stream, "").await, "");
    }
    let answer = talk(&mut queued, "").await;
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("connection: close"));
    // One that stays silent is closed.
    assert_eq!(talk(third, "").await, "");
    timeout(Duration::from_secs(20), server).await.unwrap().unwrap().unwrap();
    assert!(TcpStream::connect(&address).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_has_a_time_limit() {
    let stop_timeout = Duration::from_millis(200);
    let (running, guard, _folder) = crowded(ServerOptions { stop_timeout, ..options() }).await;
    let request = tokio::spawn(talk(running.connect().await, tokenize("b")));
    sleep(Duration::from_millis(200)).await;
    timeout(Duration::from_secs(20), running.stop()).await.unwrap();
    assert_eq!(request.await.unwrap(), "");
    drop(guard);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_goes_away_ends_its_request() {
    let (running, guard, _folder) = crowded(ServerOptions { metrics: true, ..options() }).await;
    let mut stream = running.connect().await;
    stream.write_all(tokenize("b").as_bytes()).await.unwrap();
    sleep(Duration::from_millis(200)).await;
    drop(stream);
    let line =
        "stonechat:http_requests_total{method=\"POST\",route=\"/tokenize\",status=\"499\"} 1";
    let counted = async {
        while !running.state.metrics().text().contains(line) {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(20), counted).await.unwrap();
    drop(guard);
    running.stop().await;
}

/// Value of a metric of model `m`.
fn gauge(state: &AppState, name: &str) -> Option<f64> {
    let start = format!("stonechat:{name}{{model_name=\"m\"}} ");
    let text = state.metrics().text();
    text.lines().find_map(|line| line.strip_prefix(&start)?.parse().ok())
}

/// Waits until a metric has a value: engines report between two steps.
pub(crate) async fn wait_for(state: &AppState, name: &str, expected: f64) {
    let equal = async {
        while gauge(state, name) != Some(expected) {
            sleep(Duration::from_millis(5)).await;
        }
    };
    let reached = timeout(Duration::from_secs(20), equal).await;
    assert!(reached.is_ok(), "{name}: expected {expected}, got {:?}", gauge(state, name));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_tell_pages_of_requests_from_cached_ones() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = ServerOptions { slot_save_path: Some(folder.path().into()), ..options() };
    options.engine.n_parallel = 1;
    let app = App::new(options).await;
    wait_for(app.state(), "kv_cache_pages_cached", 0.0).await;
    let completion = |prompt: &str, n: usize| json!({"prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": true});
    assert_eq!(app.post("/v1/completions", &completion("ab", 8)).await.status, 200);
    wait_for(app.state(), "kv_cache_pages_used", 0.0).await;
    wait_for(app.state(), "kv_cache_pages_cached", 1.0).await;
    let erased = app.post("/slots/0?action=erase", &json!({})).await.json();
    assert!(erased["n_erased"].as_u64().is_some_and(|n| n > 0), "{erased}");
    wait_for(app.state(), "kv_cache_pages_cached", 0.0).await;

    // A client that goes away.
    let body = completion("ba", 200);
    let aborted = app.post("/v1/completions", &body);
    drop(timeout(Duration::from_millis(10), aborted).await);
    wait_for(app.state(), "kv_cache_pages_used", 0.0).await;
    wait_for(app.state(), "num_requests_running", 0.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompt_that_never_ran_is_not_counted() {
    let app = App::new(options()).await;
    let body = json!({"prompt": "ab ".repeat(500), "max_tokens": 1});
    assert_eq!(app.post("/v1/completions", &body).await.kind(), "exceed_context_size_error");
    assert_eq!(gauge(app.state(), "prompt_tokens_total"), Some(0.0));
    let body = json!({"prompt": "abab", "max_tokens": 0});
    let answer = app.post("/v1/completions", &body).await.json();
    let n = answer["usage"]["prompt_tokens"].as_f64();
    assert!(n.is_some_and(|n| n > 0.0), "{answer}");
    assert_eq!(gauge(app.state(), "prompt_tokens_total"), n);
}
