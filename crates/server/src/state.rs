//! State that the handlers share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use tokio::runtime::Handle;

use crate::{ApiError, ApiResult};
use crate::{LanguageGuard, LoadError, Metrics, ServerModels, ServerOptions, SpeechGuard};

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
    is_ready: AtomicBool,
    is_stopping: AtomicBool,
}

impl AppState {
    /// State of a server whose first models are not open yet. Tasks run on `runtime`.
    ///
    /// # Errors
    /// If the headers of a model cannot be read.
    pub fn new(options: ServerOptions, runtime: Handle) -> Result<Self, LoadError> {
        let options = Arc::new(options);
        let metrics = Arc::new(Metrics::default());
        let models = ServerModels::new(Arc::clone(&options), Arc::clone(&metrics), runtime)?;
        let unix = SystemTime::now().duration_since(UNIX_EPOCH);
        Ok(Self(Arc::new(Shared {
            options,
            models,
            metrics,
            started: Instant::now(),
            started_unix: unix.map_or(0, |time| time.as_secs()),
            is_ready: AtomicBool::new(false),
            is_stopping: AtomicBool::new(false),
        })))
    }

    /// Opens the models that were named at the start; then the server is ready.
    ///
    /// # Errors
    /// If one of them cannot be opened.
    pub async fn open_models(&self) -> Result<(), LoadError> {
        self.0.models.open_presets().await?;
        self.0.is_ready.store(true, Ordering::Release);
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
        self.0.is_ready.load(Ordering::Acquire)
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
    /// 503 while the first models load, 404 for an unknown name, 400 for a speech model, 429 if the queue is full.
    pub async fn language(&self, name: Option<&str>) -> ApiResult<LanguageGuard> {
        self.check_ready()?;
        self.count_rejection(self.0.models.language(name).await)
    }

    /// The speech model of a request, opened if need be; `name` is its field `model`.
    ///
    /// # Errors
    /// As [`language`](Self::language).
    pub async fn speech(&self, name: Option<&str>) -> ApiResult<SpeechGuard> {
        self.check_ready()?;
        self.count_rejection(self.0.models.speech(name).await)
    }

    /// Refuses requests while the first models load.
    pub(crate) fn check_ready(&self) -> ApiResult<()> {
        if self.is_ready() { Ok(()) } else { Err(ApiError::unavailable("Loading model")) }
    }

    fn count_rejection<T>(&self, result: ApiResult<T>) -> ApiResult<T> {
        if result.as_ref().is_err_and(|error| error.status() == 429) {
            self.0.metrics.rejected();
        }
        result
    }
}
