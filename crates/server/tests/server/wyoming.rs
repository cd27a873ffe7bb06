//! Wyoming over TCP, with a small model of Whisper.

use serde_json::{Value, json};
use stonechat_api::wyoming::{Frame, FrameReader};
use stonechat_server::ServerOptions;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::live_client::{PATIENCE, Running, english, fox, letters, pcm16};

struct Client {
    stream: TcpStream,
    reader: FrameReader,
}

impl Client {
    async fn connect(server: &Running) -> Self {
        let stream = TcpStream::connect(server.wyoming.as_ref().unwrap()).await.unwrap();
        Self { stream, reader: FrameReader::default() }
    }

    /// Sends an event as the library of Home Assistant does: its data after the header.
    async fn send(&mut self, kind: &str, data: &Value, payload: &[u8]) {
        let data = data.to_string();
        let header = json!({"type": kind, "version": "1.10.2", "data_length": data.len(),
            "payload_length": payload.len()});
        let bytes = [header.to_string().as_bytes(), b"\n", data.as_bytes(), payload].concat();
        self.stream.write_all(&bytes).await.unwrap();
    }

    /// The next event; `None` at the end of the connection.
    async fn event(&mut self) -> Option<Frame> {
        let mut bytes = [0; 4096];
        loop {
            if let Some(frame) = self.reader.next_frame().unwrap() {
                return Some(frame);
            }
            let n = timeout(PATIENCE, self.stream.read(&mut bytes)).await.unwrap().unwrap();
            if n == 0 {
                return None;
            }
            self.reader.push(&bytes[..n]);
        }
    }

    async fn events(&mut self) -> Vec<Frame> {
        let mut events = Vec::new();
        while let Some(event) = self.event().await {
            events.push(event);
        }
        events
    }
}

fn format(rate: u32, width: u32, channels: u32) -> Value {
    json!({"rate": rate, "width": width, "channels": channels, "timestamp": null})
}

async fn start() -> Running {
    Running::start(ServerOptions { wyoming_port: Some(0), ..english() }).await
}

fn kinds(events: &[Frame]) -> Vec<&str> {
    events.iter().map(|event| event.kind.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_of_home_assistant_is_transcribed() {
    let server = start().await;
    // Mono, and stereo of 32 bits.
    let samples = fox();
    let wide = |x: &f32| ((f64::from(*x) * 2_147_483_647.0) as i32).to_le_bytes();
    let stereo: Vec<u8> = samples.iter().flat_map(|x| [wide(x), wide(x)].concat()).collect();
    for (width, channels, audio) in [(2, 1, pcm16(&samples)), (4, 2, stereo)] {
        let mut client = Client::connect(&server).await;
        client.send("transcribe", &json!({"language": "en"}), &[]).await;
        let format = format(16_000, width, channels);
        client.send("audio-start", &format, &[]).await;
        for piece in audio.chunks(2048) {
            client.send("audio-chunk", &format, piece).await;
        }
        client.send("audio-stop", &json!({"timestamp": null}), &[]).await;
        let events = client.events().await;
        let kinds = kinds(&events);
        assert_eq!(kinds[0], "transcript-start");
        assert_eq!(kinds[kinds.len() - 2..], ["transcript", "transcript-stop"]);
        let transcript = &events[events.len() - 2].data;
        let text = transcript["text"].as_str().unwrap();
        assert_eq!(letters(text), "the quick brown fox jumps over the lazy dog");
        assert_eq!(transcript["language"], "en");
        let chunks = events.iter().filter(|event| event.kind == "transcript-chunk");
        let chunks: String = chunks.map(|event| event.data["text"].as_str().unwrap()).collect();
        assert_eq!(chunks, text);
    }
    server.no_session().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn models_are_described_and_pings_answered() {
    let server = start().await;
    let mut client = Client::connect(&server).await;
    client.send("ping", &json!({"text": "a"}), &[]).await;
    let pong = client.event().await.unwrap();
    assert_eq!((pong.kind.as_str(), &pong.data["text"]), ("pong", &json!("a")));
    client.send("describe", &json!({}), &[]).await;
    let info = client.event().await.unwrap();
    let model = &info.data["asr"][0]["models"][0];
    assert_eq!((&model["name"], &model["languages"]), (&json!("tiny.en"), &json!(["en"])));
    assert_eq!(server.state.n_live_sessions(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_audio_and_silence_are_an_empty_transcript() {
    let server = start().await;
    for n_bytes in [0, 64_000] {
        let mut client = Client::connect(&server).await;
        client.send("transcribe", &json!({}), &[]).await;
        client.send("audio-start", &format(16_000, 2, 1), &[]).await;
        client.send("audio-chunk", &format(16_000, 2, 1), &vec![0; n_bytes]).await;
        client.send("audio-stop", &json!({}), &[]).await;
        let events = client.events().await;
        assert_eq!(kinds(&events), ["transcript-start", "transcript", "transcript-stop"]);
        assert_eq!(events[1].data["text"], "");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_bytes_end_the_connection() {
    let server = start().await;
    for (bytes, expected) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "header"),
        (b"{\"type\": \"audio-chunk\", \"payload_length\": 999999999}\n", "at most 4194304 bytes"),
        (b"{\"type\": \"audio-start\", \"data\": {\"rate\": 5, \"width\": 2, \"channels\": 1}}\n", "sample rate"),
        (b"{\"type\": \"transcribe\", \"data\": {\"language\": \"klingon\"}}\n{\"type\": \"audio-stop\"}\n", "language"),
    ] {
        let mut client = Client::connect(&server).await;
        client.stream.write_all(bytes).await.unwrap();
        let events = client.events().await;
        assert_eq!(kinds(&events), ["error"]);
        let text = events[0].data["text"].as_str().unwrap();
        assert!(text.contains(expected), "{text}");
    }
    server.no_session().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_frees_its_session() {
    let options = ServerOptions { max_live_sessions: 1, wyoming_port: Some(0), ..english() };
    let server = Running::start(options).await;
    let audio = pcm16(&fox());
    let mut first = Client::connect(&server).await;
    first.send("audio-start", &format(16_000, 2, 1), &[]).await;
    first.send("audio-chunk", &format(16_000, 2, 1), &audio).await;
    first.send("ping", &json!({}), &[]).await;
    assert_eq!(first.event().await.unwrap().kind, "pong");
    let mut second = Client::connect(&server).await;
    second.send("audio-start", &format(16_000, 2, 1), &[]).await;
    let events = second.events().await;
    assert_eq!(kinds(&events), ["error"]);
    assert_eq!(events[0].data["code"], "rate_limit_error");
    drop(first);
    server.no_session().await;
}
