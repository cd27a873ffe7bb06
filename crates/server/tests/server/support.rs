//! A router in process, and what tests of it share.

use std::path::{Path, PathBuf};

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request};
use serde_json::Value;
use stonechat::Device;
use stonechat::formats::{GgufWriter, Metadata, ModelFile, TensorInfo};
use stonechat_server::{AppState, ModelOption, ServerOptions, router};
use tokio::runtime::Handle;
use tower::ServiceExt;

/// Path of a file of the repository's test data.
pub(crate) fn test_data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test-data").join(path)
}

/// Language model of random weights.
pub(crate) fn language(name: &str) -> ModelOption {
    ModelOption { name: name.to_owned(), path: test_data("golden/llm/llama.gguf") }
}

/// File of the language model of random weights with other metadata.
pub(crate) fn with_metadata(change: impl FnOnce(&mut Metadata)) -> Vec<u8> {
    let file = ModelFile::open(language("").path).unwrap();
    let mut metadata = file.metadata().clone();
    change(&mut metadata);
    let infos = file.tensors().map(|t| TensorInfo::new(t.name, t.dtype, t.shape)).collect();
    let mut writer = GgufWriter::new(Vec::new(), &metadata, infos).unwrap();
    for tensor in file.tensors() {
        writer.write_tensor(tensor.name, &tensor.data.load().unwrap()).unwrap();
    }
    writer.finish().unwrap()
}

/// Speech model of random weights.
pub(crate) fn speech(name: &str) -> ModelOption {
    static PATH: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    let path = PATH.get_or_init(|| {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tiny-whisper.gguf");
        std::fs::write(&path, stonechat_testkit::TinyWhisper::default().gguf()).unwrap();
        path
    });
    ModelOption { name: name.to_owned(), path: path.clone() }
}

/// Bodies that are no valid `/tokenize`, each with a part of the message.
pub(crate) fn bad_json() -> Vec<(String, &'static str)> {
    let deep = format!("{{\"content\": {}1{}}}", "[".repeat(70), "]".repeat(70));
    [
        ("", "expected a JSON body, got an empty one"),
        ("{", "EOF while parsing"),
        ("[]", "the body is invalid"),
        ("{\"content\": \"a\"} x", "trailing characters"),
        ("{}", "missing field `content`"),
        ("{\"content\": \"a\", \"with_pieces\": 1}", "`with_pieces`: invalid type: integer `1`"),
        (deep.as_str(), "at most 64 levels, got 71"),
    ]
    .map(|(body, expected)| (body.to_owned(), expected))
    .to_vec()
}

/// A router with its state.
pub(crate) struct App {
    state: AppState,
    router: Router,
}

/// A response with its whole body.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    /// The body as JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.header("content-type"), "application/json", "{self:?}");
        serde_json::from_str(&self.text).unwrap()
    }

    /// A header, empty if it is absent.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// Message of an error.
    #[track_caller]
    pub(crate) fn message(&self) -> String {
        self.json()["error"]["message"].as_str().unwrap().to_owned()
    }

    /// Type of an error.
    #[track_caller]
    pub(crate) fn kind(&self) -> String {
        assert_eq!(self.json()["error"]["code"], self.status, "{self:?}");
        self.json()["error"]["type"].as_str().unwrap().to_owned()
    }
}

impl App {
    /// A server whose models are not open yet, on the CPU.
    pub(crate) fn closed(mut options: ServerOptions) -> Self {
        options.engine.device = Device::Cpu;
        options.engine.n_threads = 1;
        let state = AppState::new(options, Handle::current()).unwrap();
        Self { router: router(state.clone()), state }
    }

    /// A server with open models.
    pub(crate) async fn new(options: ServerOptions) -> Self {
        let app = Self::closed(options);
        app.open().await;
        app
    }

    /// A server with one language model.
    pub(crate) async fn language() -> Self {
        Self::new(ServerOptions { models: vec![language("m")], ..ServerOptions::default() }).await
    }

    /// Opens the models.
    pub(crate) async fn open(&self) {
        self.state.open_models().await.unwrap();
    }

    pub(crate) fn state(&self) -> &AppState {
        &self.state
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(Request::get(path).body(Body::empty()).unwrap()).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_text(path, "application/json", &body.to_string()).await
    }

    pub(crate) async fn post_text(&self, path: &str, media_type: &str, body: &str) -> Answer {
        let request = Request::builder().method(Method::POST).uri(path);
        let request = request.header("content-type", media_type);
        self.send(request.body(Body::from(body.to_owned())).unwrap()).await
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        Answer {
            status: parts.status.as_u16(),
            headers: parts.headers,
            text: String::from_utf8(bytes.to_vec()).unwrap(),
        }
    }
}
