//! Options of the server.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use stonechat::llm::Pooling;
use stonechat::sampling::SamplingOptions;
use stonechat::{Device, DraftSource, GpuLayers, KvDType, Models};
use stonechat_api::{ChatDefaults, Defaults};

use crate::{PageFile, Traces, WebPackage};

/// A model to load at start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelOption {
    /// Name in `/v1/models`.
    pub name: String,
    /// File or folder.
    pub path: PathBuf,
}

/// Files of TLS, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// Private key.
    pub key: PathBuf,
    /// Certificate, with those of the authorities after it.
    pub certificate: PathBuf,
}

/// Options with which models are opened.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Device.
    pub device: Device,
    /// CPU threads; 0 is one per physical core.
    pub n_threads: usize,
    /// Layers on a GPU; `None`: all on a GPU that is named, else as many as fit.
    pub gpu_layers: Option<GpuLayers>,
    /// Context size in tokens; `None`: that of training, at most 16,384.
    pub n_ctx: Option<usize>,
    /// Type of cached keys and values.
    pub kv_dtype: KvDType,
    /// Tokens that the KV cache of a model holds for all requests; `None`: the context size.
    pub kv_tokens: Option<usize>,
    /// Bytes of memory for KV pages that the caches of all models drop; 0: none.
    pub cache_ram: usize,
    /// File for KV pages, which outlives the server.
    pub page_file: Option<PageFile>,
    /// Slots: maximum requests in a batch.
    pub n_parallel: usize,
    /// Maximum tokens of a step.
    pub n_batch: usize,
    /// Speculative decoding; `None`: off. A draft model drafts for the models of its vocabulary.
    pub drafts: Option<DraftSource>,
    /// Chat template in place of the model's: Jinja, or the name of a built-in one.
    pub chat_template: Option<String>,
    /// Windows of recordings that a speech model decodes in one batch, 1 to 64.
    pub audio_windows: usize,
    /// Gets the model's name after each step of a model, on its thread. A panic in it is one of the model.
    pub on_step: Option<StepObserver>,
}

/// A function that observes the steps of models.
#[derive(Clone)]
pub struct StepObserver(Arc<dyn Fn(&str) + Send + Sync>);

impl StepObserver {
    /// Wraps a function that gets the name of the model.
    pub fn new(observe: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(observe))
    }

    pub(crate) fn call(&self, model: &str) {
        (self.0)(model);
    }
}

impl fmt::Debug for StepObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StepObserver")
    }
}

/// Default of [`EngineOptions::cache_ram`], that of llama-server.
const DEFAULT_CACHE_RAM: usize = 8192 << 20;

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            device: Device::Auto,
            n_threads: 0,
            gpu_layers: None,
            n_ctx: None,
            kv_dtype: KvDType::F16,
            kv_tokens: None,
            cache_ram: DEFAULT_CACHE_RAM,
            page_file: None,
            n_parallel: 16,
            n_batch: 512,
            drafts: None,
            chat_template: None,
            audio_windows: 4,
            on_step: None,
        }
    }
}

/// Options of a server. The defaults are those of llama-server, except that CORS is off.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// Models to load at start.
    pub models: Vec<ModelOption>,
    /// Installed models that requests may name; they are loaded when they are needed.
    pub installed: Option<Models>,
    /// Further names of the first model.
    pub aliases: Vec<String>,
    /// Tags of the first model, for clients; no effect here.
    pub tags: Vec<String>,
    /// Options of the engines.
    pub engine: EngineOptions,
    /// Sampling of requests that do not say otherwise.
    pub sampling: SamplingOptions,
    /// Maximum tokens of requests that do not say otherwise.
    pub n_predict: Option<usize>,
    /// Reasoning, and variables of the chat template, of requests that do not say otherwise.
    pub chat: ChatDefaults,
    /// Pooling of embeddings; `None`: that of the model, else the mean.
    pub pooling: Option<Pooling>,
    /// Whether a text whose context is full continues after a context shift.
    pub context_shift: bool,
    /// Memory for open models in bytes; `None`: 80 % of the machine's, less [`EngineOptions::cache_ram`].
    pub models_memory: Option<u64>,
    /// Idle time after which a model is unloaded.
    pub sleep_idle: Option<Duration>,
    /// Maximum requests that use or wait for one model; more get 429.
    pub max_queue: usize,
    /// Time in which a request must end, unless it says so itself.
    pub request_timeout: Option<Duration>,
    /// Time for which a request waits until its model is open.
    pub load_timeout: Option<Duration>,
    /// Addresses to listen on; one that ends in `.sock` is a unix socket.
    pub hosts: Vec<String>,
    /// TCP port; 0 is a free one.
    pub port: u16,
    /// API keys; a client must send one of them. An empty list needs none.
    pub api_keys: Vec<String>,
    /// Origins of browsers that may send requests, or `*`; none: CORS is off.
    pub cors_origins: Vec<String>,
    /// TLS; `None`: plain HTTP.
    pub tls: Option<TlsFiles>,
    /// Maximum bytes of a body, other than that of an upload.
    pub max_body_size: usize,
    /// Maximum bytes of an uploaded recording.
    pub max_audio_size: usize,
    /// Maximum seconds of an uploaded recording.
    pub max_audio_seconds: u64,
    /// Bytes of memory for the files and samples of all uploads; more get 503.
    pub max_audio_memory: u64,
    /// Maximum live sessions, by WebSocket and Wyoming; more get 429.
    pub max_live_sessions: usize,
    /// Time after which a live session without audio or events is closed.
    pub live_idle_timeout: Duration,
    /// TCP port of Wyoming on the addresses of [`hosts`](Self::hosts), 0 is a free one; `None`: off.
    pub wyoming_port: Option<u16>,
    /// Whether Wyoming is announced in the network by mDNS.
    pub wyoming_discovery: bool,
    /// Maximum open connections; further ones wait in the backlog of the socket.
    pub max_connections: usize,
    /// Time in which a client must send the headers of a request; an idle connection is closed after it, too.
    pub header_timeout: Duration,
    /// Time in which the body of a request must arrive.
    pub body_timeout: Duration,
    /// Time in which the next part of a body must arrive.
    pub body_idle_timeout: Duration,
    /// Time in which a client must read a part of its answer.
    pub write_timeout: Duration,
    /// Time after SIGTERM in which running requests may end.
    pub stop_timeout: Duration,
    /// Interval of comments in a stream that has no data.
    pub sse_ping_interval: Option<Duration>,
    /// Whether the page is served at `/`.
    pub page: bool,
    /// Files of the npm package at `/web/`; `None`: the page has the engine of this server alone.
    pub web_package: Option<WebPackage>,
    /// Whether clients may download and remove models.
    pub manage_models: bool,
    /// Whether `/metrics` is on.
    pub metrics: bool,
    /// Traces of requests; `None`: off.
    pub traces: Option<Traces>,
    /// Whether `/slots` is on.
    pub slots: bool,
    /// Folder of saved slots.
    pub slot_save_path: Option<PathBuf>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            models: Vec::new(),
            installed: None,
            aliases: Vec::new(),
            tags: Vec::new(),
            engine: EngineOptions::default(),
            sampling: SamplingOptions::default(),
            n_predict: None,
            chat: ChatDefaults::default(),
            pooling: None,
            context_shift: false,
            models_memory: None,
            sleep_idle: None,
            max_queue: 512,
            request_timeout: None,
            load_timeout: Some(Duration::from_secs(300)),
            hosts: vec!["127.0.0.1".to_owned()],
            port: 8080,
            api_keys: Vec::new(),
            cors_origins: Vec::new(),
            tls: None,
            max_body_size: 32 << 20,
            max_audio_size: 512 << 20,
            max_audio_seconds: 4 * 3600,
            max_audio_memory: 2 << 30,
            max_live_sessions: 8,
            live_idle_timeout: Duration::from_secs(300),
            wyoming_port: None,
            wyoming_discovery: false,
            max_connections: 1024,
            header_timeout: Duration::from_secs(60),
            body_timeout: Duration::from_secs(600),
            body_idle_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(60),
            stop_timeout: Duration::from_secs(10),
            sse_ping_interval: Some(Duration::from_secs(30)),
            page: true,
            web_package: None,
            manage_models: false,
            metrics: false,
            traces: None,
            slots: true,
            slot_save_path: None,
        }
    }
}

impl ServerOptions {
    /// Values of fields that a body leaves out.
    pub(crate) fn defaults(&self) -> Defaults<'_> {
        Defaults {
            n_predict: self.n_predict,
            pooling: self.pooling,
            chat: &self.chat,
            context_shift: self.context_shift,
            timeout: self.request_timeout,
            max_choices: self.engine.n_parallel,
            ..Defaults::new(&self.sampling)
        }
    }

    /// Deadline of a request that arrives now; `None` beyond all times.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.request_timeout.and_then(|timeout| Instant::now().checked_add(timeout))
    }
}
