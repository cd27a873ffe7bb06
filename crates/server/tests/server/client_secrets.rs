//! Client secrets of live sessions.

use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};
use stonechat_server::{ServerOptions, router};
use tower::ServiceExt;

use crate::live_client::{Client, Running, english};

const PATH: &str = "/v1/realtime/client_secrets";

/// Status and body of a request to a running server.
async fn send(server: &Running, request: Request<Body>) -> (u16, Value) {
    let response = router(server.state.clone()).oneshot(request).await.unwrap();
    let status = response.status().as_u16();
    let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (status, serde_json::from_slice(&bytes).unwrap())
}

async fn create(server: &Running, key: &str, body: &Value) -> (u16, Value) {
    let request = Request::post(PATH).header("authorization", format!("Bearer {key}"));
    send(server, request.body(Body::from(body.to_string())).unwrap()).await
}

/// The session that a secret opens, by the subprotocol of browsers.
async fn open(server: &Running, secret: &str, query: &str) -> Result<Value, u16> {
    let protocol = format!("realtime, openai-insecure-api-key.{secret}");
    let headers = [("sec-websocket-protocol", protocol.as_str())];
    let mut client = Client::try_connect(&server.address, query, &headers).await?;
    Ok(client.event().await["session"].clone())
}

fn german() -> Value {
    json!({"session": {"type": "transcription", "audio": {"input": {
        "transcription": {"language": "de"}, "turn_detection": null}}}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_opens_sessions_of_its_configuration_and_nothing_else() {
    let api_keys = vec!["k".to_owned()];
    let server = Running::start(ServerOptions { api_keys, ..english() }).await;
    assert_eq!(create(&server, "wrong", &german()).await.0, 401);
    let (status, answer) = create(&server, "k", &german()).await;
    assert_eq!(status, 200, "{answer}");
    let secret = answer["value"].as_str().unwrap();
    // A secret is good for several sessions, and their clients may change the configuration.
    for (query, language) in [("?intent=transcription", "de"), ("?language=en", "en")] {
        let session = open(&server, secret, query).await.unwrap();
        let input = &session["audio"]["input"];
        assert_eq!(input["transcription"]["language"], language, "{session}");
        assert_eq!(input["turn_detection"], Value::Null, "{session}");
    }
    assert_eq!(create(&server, secret, &german()).await.0, 401);
    let models = Request::get("/v1/models").header("x-api-key", secret);
    assert_eq!(send(&server, models.body(Body::empty()).unwrap()).await.0, 401);
    let shorter = &secret[..secret.len() - 1];
    assert_eq!(open(&server, shorter, "").await.unwrap_err(), 401);
    // Other keys end the secrets of the old ones.
    server.state.set_api_keys(&["k".to_owned()]).unwrap();
    assert!(open(&server, secret, "").await.is_ok());
    server.state.set_api_keys(&["other".to_owned()]).unwrap();
    assert_eq!(open(&server, secret, "").await.unwrap_err(), 401);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_keys_has_secrets_too() {
    let server = Running::start(english()).await;
    let (status, answer) = create(&server, "-", &german()).await;
    assert_eq!(status, 200, "{answer}");
    let session = open(&server, answer["value"].as_str().unwrap(), "").await.unwrap();
    assert_eq!(session["audio"]["input"]["transcription"]["language"], "de");
    let other = open(&server, "ek_of_another_server", "").await.unwrap();
    assert_eq!(other["audio"]["input"]["transcription"]["language"], Value::Null);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_that_opens_nothing_is_refused() {
    let server = Running::start(english()).await;
    for (session, name) in [
        (json!({"type": "realtime"}), "session.type"),
        (json!({"type": "transcription", "voice": "marin"}), "session.voice"),
        (json!({"audio": {"input": {"transcription": {"language": "klingon"}}}}), "language"),
    ] {
        let (status, answer) = create(&server, "-", &json!({"session": session})).await;
        assert_eq!((status, &answer["error"]["param"]), (400, &json!(name)), "{answer}");
    }
}
