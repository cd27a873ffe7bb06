//! A server on sockets, a client of `/v1/realtime`, and what tests of live speech share.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use stonechat_server::{AppState, ModelOption, Server, ServerError, ServerOptions};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async};

use crate::support::test_data;

/// Long enough for any machine; nothing waits for it unless the test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// A small model that knows English.
pub(crate) fn english() -> ServerOptions {
    let path = test_data("models/tiny.en-q5_1.gguf");
    let models = vec![ModelOption { name: "tiny.en".to_owned(), path }];
    ServerOptions { models, ..ServerOptions::default() }
}

/// A server on free ports.
pub(crate) struct Running {
    pub(crate) address: String,
    pub(crate) wyoming: Option<String>,
    pub(crate) state: AppState,
    pub(crate) stop: oneshot::Sender<()>,
    pub(crate) ended: JoinHandle<Result<(), ServerError>>,
}

impl Running {
    pub(crate) async fn start(mut options: ServerOptions) -> Self {
        options.port = 0;
        options.engine.device = stonechat::Device::Cpu;
        options.engine.n_threads = 2;
        let server = Server::bind(options).await.unwrap();
        let address = server.addresses().remove(0).replace("http://", "");
        let wyoming = server.wyoming_addresses().pop().map(|uri| uri.replace("tcp://", ""));
        let state = server.state().clone();
        let (stop, stopped) = oneshot::channel();
        let ended = tokio::spawn(server.run(async move { drop(stopped.await) }));
        state.ready().await;
        Self { address, wyoming, state, stop, ended }
    }

    /// Waits until no session is open.
    pub(crate) async fn no_session(&self) {
        let none = async {
            while self.state.n_live_sessions() > 0 {
                tokio::task::yield_now().await;
            }
        };
        timeout(PATIENCE, none).await.unwrap();
    }
}

/// Samples of the fox, 16 kHz.
pub(crate) fn fox() -> Vec<f32> {
    stonechat::audio::decode_file(test_data("audio/quick_brown_fox.wav")).unwrap().samples
}

/// 16-bit samples.
pub(crate) fn pcm16(samples: &[f32]) -> Vec<u8> {
    samples.iter().flat_map(|x| ((x * 32_767.0) as i16).to_le_bytes()).collect()
}

/// Samples at 24 kHz in place of 16, by lines between them.
pub(crate) fn at_24_khz(samples: &[f32]) -> Vec<f32> {
    let at = |i: usize| samples[i.min(samples.len() - 1)];
    let sample = |i: usize| match i % 3 {
        0 => at(i / 3 * 2),
        1 => at(i / 3 * 2) / 3.0 + at(i / 3 * 2 + 1) * 2.0 / 3.0,
        _ => at(i / 3 * 2 + 1) * 2.0 / 3.0 + at(i / 3 * 2 + 2) / 3.0,
    };
    (0..samples.len() * 3 / 2).map(sample).collect()
}

/// G.711 µ-law at 8 kHz.
pub(crate) fn mu_law(samples: &[f32]) -> Vec<u8> {
    let code = |pair: &[f32]| {
        let value = (pair.iter().sum::<f32>() / 2.0 * 32_767.0) as i32;
        let (sign, magnitude) = (if value < 0 { 0x80u8 } else { 0 }, value.abs().min(32_635) + 132);
        let exponent = (magnitude as u32).ilog2() as i32 - 7;
        let mantissa = (magnitude >> (exponent + 3)) & 15;
        !(sign | ((exponent as u8) << 4) | mantissa as u8)
    };
    samples.chunks_exact(2).map(code).collect()
}

/// A client of the WebSocket.
pub(crate) struct Client(pub(crate) WebSocketStream<TcpStream>);

impl Client {
    pub(crate) async fn try_connect(
        address: &str,
        query: &str,
        headers: &[(&'static str, &str)],
    ) -> Result<Self, u16> {
        let url = format!("ws://{address}/v1/realtime{query}");
        let mut request = url.into_client_request().unwrap();
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse().unwrap());
        }
        let stream = TcpStream::connect(address).await.unwrap();
        match client_async(request, stream).await {
            Ok((socket, _)) => Ok(Self(socket)),
            Err(Error::Http(response)) => Err(response.status().as_u16()),
            Err(error) => panic!("{error}"),
        }
    }

    pub(crate) async fn connect(server: &Running) -> Self {
        let mut client =
            Self::try_connect(&server.address, "?intent=transcription", &[]).await.unwrap();
        assert_eq!(client.event().await["type"], "session.created");
        client
    }

    pub(crate) async fn send(&mut self, event: &Value) {
        self.0.send(Message::text(event.to_string())).await.unwrap();
    }

    pub(crate) async fn update(&mut self, input: &Value) -> Value {
        let session = json!({"type": "transcription", "audio": {"input": input}});
        self.send(&json!({"type": "session.update", "session": session})).await;
        let updated = self.until("session.updated").await;
        updated["session"]["audio"]["input"].clone()
    }

    /// Sends audio in pieces.
    pub(crate) async fn append(&mut self, audio: &[u8]) {
        for piece in audio.chunks(9600) {
            let audio = STANDARD.encode(piece);
            self.send(&json!({"type": "input_audio_buffer.append", "audio": audio})).await;
        }
    }

    pub(crate) async fn commit(&mut self) {
        self.send(&json!({"type": "input_audio_buffer.commit", "event_id": "commit"})).await;
    }

    pub(crate) async fn message(&mut self) -> Message {
        timeout(PATIENCE, self.0.next()).await.unwrap().unwrap().unwrap()
    }

    pub(crate) async fn event(&mut self) -> Value {
        match self.message().await {
            Message::Text(text) => serde_json::from_str(&text).unwrap(),
            other => panic!("expected an event, got {other:?}"),
        }
    }

    /// The next event of a type; an error fails the test.
    pub(crate) async fn until(&mut self, kind: &str) -> Value {
        loop {
            let event = self.event().await;
            if event["type"] == kind {
                return event;
            }
            assert_ne!(event["type"], "error", "{event}");
        }
    }

    /// Events up to the end of an utterance.
    pub(crate) async fn utterance(&mut self) -> Vec<Value> {
        let mut events = Vec::new();
        loop {
            let event = self.event().await;
            let is_done = event["type"] == "conversation.item.done";
            events.push(event);
            if is_done {
                return events;
            }
        }
    }

    /// Code of the close frame, after the events that precede it.
    pub(crate) async fn closed(&mut self) -> CloseCode {
        loop {
            if let Message::Close(frame) = self.message().await {
                return frame.unwrap().code;
            }
        }
    }
}

/// Letters of a text.
pub(crate) fn letters(text: &str) -> String {
    text.to_lowercase().chars().filter(|c| c.is_alphabetic() || *c == ' ').collect()
}
