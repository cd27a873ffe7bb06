//! Live speech over a WebSocket, with a small model of Whisper.

use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use stonechat_server::{ServerOptions, router};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tower::ServiceExt;

use crate::live_client::{
    Client, PATIENCE, Running, at_24_khz, english, fox, letters, mu_law, pcm16,
};
use crate::support::App;

const TRANSCRIPTION: &str = "conversation.item.input_audio_transcription";

fn types(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

fn deltas(events: &[Value]) -> String {
    let deltas = events.iter().filter(|event| event["type"] == format!("{TRANSCRIPTION}.delta"));
    deltas.map(|event| event["delta"].as_str().unwrap()).collect()
}

const FOX: &str = "the quick brown fox jumps over the lazy dog";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn speech_becomes_an_utterance_when_it_ends() {
    let server = Running::start(english()).await;
    let mut client = Client::connect(&server).await;
    let audio = [fox(), vec![0.0; 24_000]].concat();
    client.append(&pcm16(&at_24_khz(&audio))).await;
    let events = client.utterance().await;
    let types = types(&events);
    assert_eq!(types[0], "input_audio_buffer.speech_started", "{types:?}");
    let at = |name: &str| types.iter().position(|kind| *kind == name).unwrap();
    let stopped = at("input_audio_buffer.speech_stopped");
    assert!(stopped < at("input_audio_buffer.committed"), "{types:?}");
    assert!(at("input_audio_buffer.committed") < at("conversation.item.added"), "{types:?}");
    let completed = &events[at(&format!("{TRANSCRIPTION}.completed"))];
    let transcript = completed["transcript"].as_str().unwrap();
    assert_eq!(letters(transcript), FOX);
    assert_eq!(deltas(&events), transcript);
    assert!(
        events
            .iter()
            .filter_map(|event| event.get("item_id"))
            .all(|id| *id == events[0]["item_id"])
    );
    let (start, end) = (&events[0]["audio_start_ms"], &events[stopped]["audio_end_ms"]);
    assert!(start.as_u64().unwrap() < 700 && end.as_u64().unwrap() < 4500, "{start} {end}");
    let metrics = server.state.metrics().text();
    for line in [
        "stonechat:live_sessions{protocol=\"realtime\"} 1",
        "stonechat:live_utterances_total{model_name=\"tiny.en\"} 1",
        "stonechat:live_time_to_first_text_seconds_count{model_name=\"tiny.en\"} 1",
    ] {
        assert!(metrics.lines().any(|found| found == line), "no `{line}` in {metrics}");
    }
    // Silence is no further utterance.
    client.append(&pcm16(&vec![0.0; 24_000])).await;
    client.commit().await;
    let refused = client.event().await;
    assert_eq!(refused["error"]["code"], "input_audio_buffer_commit_empty", "{refused}");
    assert_eq!(refused["error"]["event_id"], "commit");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_commits_and_clears() {
    let server = Running::start(english()).await;
    let mut client = Client::connect(&server).await;
    let input = client
        .update(&json!({"format": {"type": "audio/pcmu"}, "turn_detection": null,
            "transcription": {"language": "en"}}))
        .await;
    assert_eq!(
        (&input["turn_detection"], &input["transcription"]["language"]),
        (&Value::Null, &json!("en"))
    );
    let audio = mu_law(&fox());
    client.append(&audio).await;
    client.send(&json!({"type": "input_audio_buffer.clear"})).await;
    assert_eq!(client.event().await["type"], "input_audio_buffer.cleared");
    client.commit().await;
    let refused = client.event().await;
    assert_eq!(refused["error"]["code"], "input_audio_buffer_commit_empty", "{refused}");
    for _ in 0..2 {
        client.append(&audio).await;
        client.commit().await;
        let events = client.utterance().await;
        assert_eq!(
            types(&events)[..2],
            ["input_audio_buffer.committed", "conversation.item.added"]
        );
        let completed = events.iter().find(|event| event.get("transcript").is_some()).unwrap();
        assert_eq!(letters(completed["transcript"].as_str().unwrap()), FOX);
        assert_eq!(deltas(&events), completed["transcript"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_update_changes_a_running_session() {
    let server = Running::start(english()).await;
    let mut client = Client::connect(&server).await;
    let format = json!({"format": {"type": "audio/pcm", "rate": 16000}});
    client.update(&format).await;
    client.append(&pcm16(&fox())).await;
    // The utterance that has begun ends with the detection of turns.
    client.update(&json!({"turn_detection": null})).await;
    let events = client.utterance().await;
    let completed = events.iter().find(|event| event.get("transcript").is_some()).unwrap();
    assert_eq!(letters(completed["transcript"].as_str().unwrap()), FOX);
    for (event, expected) in [
        (json!({"type": "response.create", "event_id": "e"}), "got `response.create`"),
        (
            json!({"type": "session.update", "event_id": "e", "session": {"type": "realtime"}}),
            "speech",
        ),
        (json!({"type": "input_audio_buffer.append", "event_id": "e", "audio": "?"}), "base64"),
    ] {
        client.send(&event).await;
        let error = client.event().await["error"].clone();
        assert_eq!(
            (&error["event_id"], &error["type"]),
            (&json!("e"), &json!("invalid_request_error"))
        );
        assert!(error["message"].as_str().unwrap().contains(expected), "{error}");
    }
    client.0.send(Message::binary(vec![0; 4])).await.unwrap();
    assert!(client.event().await["error"]["message"].as_str().unwrap().contains("as text"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_frees_its_session() {
    let options = ServerOptions { max_live_sessions: 1, ..english() };
    let server = Running::start(options).await;
    for _ in 0..3 {
        let mut client = Client::connect(&server).await;
        let busy = Client::try_connect(&server.address, "", &[]).await;
        assert_eq!(busy.err(), Some(429));
        // Half a minute that is not transcribed when it leaves.
        for _ in 0..10 {
            client.append(&pcm16(&fox())).await;
        }
        drop(client);
        server.no_session().await;
    }
    let metrics = server.state.metrics().text();
    for line in [
        "stonechat:live_sessions{protocol=\"realtime\"} 0",
        "stonechat:live_sessions_opened_total{protocol=\"realtime\"} 3",
        "stonechat:live_sessions_refused_total{protocol=\"realtime\"} 3",
    ] {
        assert!(metrics.lines().any(|found| found == line), "no `{line}` in {metrics}");
    }
}

/// Bytes of the models in use.
async fn models_memory(server: &Running) -> u64 {
    let request = Request::get("/metrics").body(Body::empty()).unwrap();
    let response = router(server.state.clone()).oneshot(request).await.unwrap();
    let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    let mut values =
        text.lines().filter_map(|line| line.strip_prefix("stonechat:models_memory_bytes "));
    values.next().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_engine_counts_as_memory_of_models() {
    let server = Running::start(ServerOptions { metrics: true, ..english() }).await;
    let before = models_memory(&server).await;
    let mut client = Client::connect(&server).await;
    client.append(&pcm16(&at_24_khz(&fox()))).await;
    client.until("input_audio_buffer.speech_started").await;
    assert!(models_memory(&server).await > before);
    drop(client);
    let freed = async {
        while models_memory(&server).await > before {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, freed).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_session_is_closed() {
    let live_idle_timeout = Duration::from_millis(50);
    let server = Running::start(ServerOptions { live_idle_timeout, ..english() }).await;
    let mut client = Client::connect(&server).await;
    assert_eq!(client.closed().await, CloseCode::Normal);
    server.no_session().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopping_server_completes_the_utterance() {
    let stop_timeout = PATIENCE;
    let server = Running::start(ServerOptions { stop_timeout, ..english() }).await;
    let mut client = Client::connect(&server).await;
    client.append(&pcm16(&at_24_khz(&fox()))).await;
    client.until("input_audio_buffer.speech_started").await;
    server.stop.send(()).unwrap();
    let events = client.utterance().await;
    // Audio that had not arrived is not part of it.
    assert!(events.iter().any(|event| event["transcript"].is_string()), "{events:?}");
    assert_eq!(client.closed().await, CloseCode::Away);
    server.ended.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_stop_timeout_ends_sessions() {
    let stop_timeout = Duration::from_millis(1);
    let server = Running::start(ServerOptions { stop_timeout, ..english() }).await;
    let mut client = Client::connect(&server).await;
    client.append(&pcm16(&fox())).await;
    server.stop.send(()).unwrap();
    server.ended.await.unwrap().unwrap();
    let end = timeout(PATIENCE, async { while let Some(Ok(_)) = client.0.next().await {} }).await;
    end.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_and_origins_hold_for_a_websocket() {
    let server =
        Running::start(ServerOptions { api_keys: vec!["k".to_owned()], ..english() }).await;
    let address = &server.address;
    let connect = async |headers: &[(&'static str, &str)]| {
        Client::try_connect(address, "", headers).await.err()
    };
    let protocol = |value| [("sec-websocket-protocol", value)];
    assert_eq!(connect(&[]).await, Some(401));
    let wrong = protocol("realtime, openai-insecure-api-key.wrong");
    assert_eq!(connect(&wrong).await, Some(401));
    let right = protocol("realtime, openai-insecure-api-key.k");
    assert_eq!(connect(&right).await, None);
    assert_eq!(connect(&[("authorization", "Bearer k")]).await, None);
    let evil = [("authorization", "Bearer k"), ("origin", "https://evil.example")];
    assert_eq!(connect(&evil).await, Some(403));
    let own = [("authorization", "Bearer k"), ("origin", "http://localhost:3000")];
    assert_eq!(connect(&own).await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_are_no_websocket_are_refused() {
    let app = App::new(english()).await;
    let answer = app.get("/v1/realtime").await;
    assert_eq!(answer.status, 400, "{answer:?}");
    assert_eq!(answer.kind(), "invalid_request_error");
    // The origin counts whatever address the request came to.
    let evil = Request::get("/v1/realtime").header("origin", "https://evil.example");
    assert_eq!(app.send(evil.body(Body::empty()).unwrap()).await.status, 403);
    let server = Running::start(english()).await;
    for query in ["?intent=conversation", "?language=klingon"] {
        let refused = Client::try_connect(&server.address, query, &[]).await;
        assert_eq!(refused.err(), Some(400), "{query}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_the_beta_get_its_names() {
    let server = Running::start(english()).await;
    let beta = [("openai-beta", "realtime=v1")];
    let mut client = Client::try_connect(&server.address, "?model=whisper-1", &beta).await.unwrap();
    let created = client.event().await;
    assert_eq!(created["type"], "transcription_session.created");
    assert_eq!(created["session"]["input_audio_transcription"]["model"], "whisper-1");
    let update = json!({"type": "transcription_session.update", "session": {
        "input_audio_format": "g711_ulaw", "input_audio_transcription": {"language": "en"}, "turn_detection": null}});
    client.send(&update).await;
    let updated = client.event().await;
    assert_eq!(updated["type"], "transcription_session.updated");
    assert_eq!(updated["session"]["input_audio_transcription"]["model"], "whisper-1");
    client.append(&mu_law(&fox())).await;
    client.commit().await;
    assert_eq!(client.event().await["type"], "input_audio_buffer.committed");
    assert_eq!(client.event().await["type"], "conversation.item.created");
    let completed = client.until(&format!("{TRANSCRIPTION}.completed")).await;
    assert_eq!(letters(completed["transcript"].as_str().unwrap()), FOX);
}
