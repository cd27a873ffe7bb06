//! State that the handlers share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::audio_memory::AudioMemory;
use crate::controls::Controls;
use crate::credentials::Credentials;
use crate::models::Served;
use crate::response_store::ResponseStore;
use crate::{ApiError, ApiResult, ServerError, listen};
use crate::{
    LanguageGuard, LoadError, Metrics, ModelGuard, ServerModels, ServerOptions, SpeechGuard,
};

/// Options, models, metrics and times of a server. Clones share it.
#[derive(Debug, Clone)]
pub struct AppState(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    options: Arc<ServerOptions>,
    models: ServerModels,
    metrics: Arc<Metrics>,
    started: Instant,
    started_unix: u64,
    is_ready: watch::Sender<bool>,
    is_stopping: AtomicBool,
    audio_memory: AudioMemory,
    credentials: Credentials,
    controls: Controls,
    responses: ResponseStore,
}

impl AppState {
    /// State of a server whose first models are not open yet. Tasks run on `runtime`.
    ///
    /// # Errors
    /// If the headers of a model cannot be read.
    pub fn new(options: ServerOptions, runtime: Handle) -> Result<Self, LoadError> {
        let options = Arc::new(options);
        let metrics = Arc::new(Metrics::new());
        let models = ServerModels::new(Arc::clone(&options), Arc::clone(&metrics), runtime)?;
        let unix = SystemTime::now().duration_since(UNIX_EPOCH);
        Ok(Self(Arc::new(Shared {
            audio_memory: AudioMemory::new(options.max_audio_memory),
            credentials: Credentials::new(&options.api_keys),
            controls: Controls::default(),
            responses: ResponseStore::default(),
            options,
            models,
            metrics,
            started: Instant::now(),
            started_unix: unix.map_or(0, |time| time.as_secs()),
            is_ready: watch::Sender::new(false),
            is_stopping: AtomicBool::new(false),
        })))
    }

    /// Opens the models that were named at the start; then the server is ready.
    ///
    /// # Errors
    /// If one of them cannot be opened.
    pub async fn open_models(&self) -> Result<(), LoadError> {
        self.0.models.open_presets().await?;
        self.0.is_ready.send_replace(true);
        Ok(())
    }

    /// Options.
    #[must_use]
    pub fn options(&self) -> &ServerOptions {
        &self.0.options
    }

    /// Models.
    #[must_use]
    pub fn models(&self) -> &ServerModels {
        &self.0.models
    }

    /// Metrics; engines keep a clone.
    #[must_use]
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.0.metrics
    }

    /// Controls of the running answers.
    pub(crate) fn controls(&self) -> &Controls {
        &self.0.controls
    }

    /// API keys and TLS as they are now.
    pub(crate) fn credentials(&self) -> &Credentials {
        &self.0.credentials
    }

    /// Replaces the API keys.
    ///
    /// # Errors
    /// If a key is empty, or there is none although there were some; then they stay.
    pub fn set_api_keys(&self, keys: &[String]) -> Result<(), ServerError> {
        self.0.credentials.set_keys(keys)
    }

    /// Reloads the TLS certificate and key, for new connections.
    ///
    /// # Errors
    /// If the files are invalid; the old certificate and key stay in use.
    pub fn reload_tls(&self) -> Result<(), ServerError> {
        self.0.credentials.set_tls(listen::tls(self.options())?);
        Ok(())
    }

    /// Responses that clients may continue.
    pub(crate) fn responses(&self) -> &ResponseStore {
        &self.0.responses
    }

    /// Memory of uploads.
    pub(crate) fn audio_memory(&self) -> &AudioMemory {
        &self.0.audio_memory
    }

    /// Time of the start.
    #[must_use]
    pub fn started(&self) -> Instant {
        self.0.started
    }

    /// Time of the start in seconds since 1970.
    #[must_use]
    pub fn started_unix(&self) -> u64 {
        self.0.started_unix
    }

    /// Whether the models that were named at the start are open.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        *self.0.is_ready.borrow()
    }

    /// Waits until the models that were named at the start are open.
    pub async fn ready(&self) {
        // The state has the sender, so that the channel stays open.
        let _ = self.0.is_ready.subscribe().wait_for(|is_ready| *is_ready).await;
    }

    /// Whether the server takes no new requests.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.0.is_stopping.load(Ordering::Acquire)
    }

    pub(crate) fn stop(&self) {
        self.0.is_stopping.store(true, Ordering::Release);
    }

    /// The language model of a request, opened if need be; `name` is its field `model`.
    ///
    /// # Errors
    /// 503 while the first models load or if it takes too long to open the model, 404 for an unknown name, 400 for a speech
    /// model, 429 if the queue is full.
    pub async fn language(&self, name: Option<&str>) -> ApiResult<LanguageGuard> {
        self.open(name, self.options().deadline()).await
    }

    /// The speech model of a request, opened if need be; `name` is its field `model`.
    ///
    /// # Errors
    /// As [`language`](Self::language).
    pub async fn speech(&self, name: Option<&str>) -> ApiResult<SpeechGuard> {
        self.open(name, self.options().deadline()).await
    }

    /// [`language`](Self::language) or [`speech`](Self::speech) of a request with a deadline of its own.
    pub(crate) async fn open<M: Served>(
        &self,
        name: Option<&str>,
        deadline: Option<Instant>,
    ) -> ApiResult<ModelGuard<M>> {
        self.check_ready()?;
        let model = self.0.models.open(name, deadline).await;
        if model.as_ref().is_err_and(|error| error.status() == 429) {
            self.0.metrics.rejected();
        }
        model
    }

    /// Refuses requests while the first models load.
    pub(crate) fn check_ready(&self) -> ApiResult<()> {
        if self.is_ready() { Ok(()) } else { Err(ApiError::unavailable("Loading model")) }
    }
}
