//! Live speech: sessions of clients that send audio as it is recorded, on an engine of their own.
//!
//! ```text
//! socket ──► Inbox ──► task of the session: VAD, LiveStream ──► live engine of the model
//!    ▲                          │
//!    └────────── updates ◄──────┘
//! ```
//!
//! The live engine shares the weights of the model, and its steps go before those of uploads. Dropping a session ends its
//! task, which cancels its job.

mod inbox;
mod record;
mod worker;

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Instant;

use stonechat::Whisper;
use stonechat::whisper::{LiveOptions, Options};
use stonechat_api::realtime::{Config, Update};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinHandle;

use crate::models::WindowMemory;
use crate::otlp::LiveTrace;
use crate::{ApiError, ApiResult, AppState, Metrics, SpeechGuard};
pub(crate) use inbox::{Command, Inbox};
use record::Record;
use worker::Worker;

/// State of the live sessions of a server.
#[derive(Debug)]
pub(crate) struct Live {
    permits: Arc<Semaphore>,
    max_sessions: usize,
    /// Engines in use by the names of their models.
    engines: Mutex<HashMap<String, Weak<LiveEngine>>>,
    phase: watch::Sender<Phase>,
}

/// Phase of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    /// Sessions complete their utterances.
    Stopping,
    /// Sessions end at once.
    Stopped,
}

/// Protocol of a session, a label of its metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Realtime,
    Wyoming,
}

impl Protocol {
    fn name(self) -> &'static str {
        match self {
            Self::Realtime => "realtime",
            Self::Wyoming => "wyoming",
        }
    }
}

/// Right to a session.
#[derive(Debug)]
pub(crate) struct LivePermit {
    metrics: Arc<Metrics>,
    protocol: Protocol,
    _permit: OwnedSemaphorePermit,
}

impl Drop for LivePermit {
    fn drop(&mut self) {
        self.metrics.live_closed(self.protocol.name());
    }
}

impl Live {
    pub(crate) fn new(max_sessions: usize) -> Self {
        let max_sessions = max_sessions.min(Semaphore::MAX_PERMITS);
        Self {
            permits: Arc::new(Semaphore::new(max_sessions)),
            max_sessions,
            engines: Mutex::default(),
            phase: watch::Sender::new(Phase::Running),
        }
    }

    /// Admits a session.
    ///
    /// # Errors
    /// 429 if there are too many, 503 if the server stops.
    pub(crate) fn admit(
        &self,
        protocol: Protocol,
        metrics: &Arc<Metrics>,
    ) -> ApiResult<LivePermit> {
        if *self.phase.borrow() != Phase::Running {
            return Err(ApiError::unavailable("the server stops"));
        }
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
            metrics.live_refused(protocol.name());
            let max = self.max_sessions;
            return Err(ApiError::overloaded(format!("{max} live sessions are open, the maximum")));
        };
        metrics.live_opened(protocol.name());
        Ok(LivePermit { metrics: Arc::clone(metrics), protocol, _permit: permit })
    }

    /// Number of open sessions.
    pub(crate) fn n_sessions(&self) -> usize {
        self.max_sessions - self.permits.available_permits()
    }

    /// Lets sessions complete their utterances; waits until all have ended.
    pub(crate) async fn stop(&self) {
        self.phase.send_replace(Phase::Stopping);
        let n = u32::try_from(self.max_sessions).unwrap_or(u32::MAX);
        // The semaphore is never closed.
        let _ = self.permits.acquire_many(n).await;
    }

    /// Ends all sessions.
    pub(crate) fn end(&self) {
        self.phase.send_replace(Phase::Stopped);
    }

    /// Waits until the server stops.
    pub(crate) async fn stopping(&self) {
        // The sender lives as long as this.
        let _ = self.phase.subscribe().wait_for(|phase| *phase != Phase::Running).await;
    }

    /// Waits until sessions must end.
    pub(crate) async fn ended(&self) {
        let _ = self.phase.subscribe().wait_for(|phase| *phase == Phase::Stopped).await;
    }

    /// The live engine of a model, opened if need be.
    async fn engine(&self, state: &AppState, name: Option<&str>) -> ApiResult<Arc<LiveEngine>> {
        let guard = state.open::<Whisper>(name, state.options().deadline()).await?;
        let model = guard.spec().name.clone();
        let mut engines = self.engines.lock().await;
        engines.retain(|_, engine| engine.strong_count() > 0);
        let engine = engines.get(&model).and_then(Weak::upgrade);
        if let Some(engine) = engine.filter(|engine| engine.whisper.is_running()) {
            return Ok(engine);
        }
        let started = Instant::now();
        let decoding = LiveOptions::default().decoding;
        let n_windows = self.max_sessions.min(state.options().engine.audio_windows).max(1);
        let memory = guard.charge_windows(n_windows)?;
        let (panics, panicked) = (Arc::clone(state.metrics()), model.clone());
        let builder = Whisper::builder()
            .parallel(n_windows)
            .reserve_for(Options { word_timestamps: true, ..decoding })
            .on_panic(move |_| panics.engine_panicked(&panicked));
        let whisper = guard.in_foreground(builder).await?;
        let seconds = started.elapsed().as_secs_f64();
        tracing::info!(model, seconds, "live engine opened");
        let _ended = OnBlockingThread(Some((whisper.clone(), memory)));
        let engine = Arc::new(LiveEngine { whisper, guard, _ended });
        engines.insert(model, Arc::downgrade(&engine));
        Ok(engine)
    }
}

/// Engine of the live sessions of a model. The model is not unloaded meanwhile.
#[derive(Debug)]
struct LiveEngine {
    whisper: Whisper,
    guard: SpeechGuard,
    /// Dropped last: the end of the engine waits for its running step, and so is left to a thread that may block. The memory
    /// is free after it.
    _ended: OnBlockingThread<(Whisper, WindowMemory)>,
}

/// Drops a value on a thread that may block.
#[derive(Debug)]
struct OnBlockingThread<T: Send + 'static>(Option<T>);

impl<T: Send + 'static> Drop for OnBlockingThread<T> {
    fn drop(&mut self) {
        let value = self.0.take();
        // Without a runtime the value is dropped here.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn_blocking(move || drop(value));
        }
    }
}

/// Model and options of a session.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Setup {
    /// Name of the model; `None`: the only one.
    pub(crate) model: Option<String>,
    pub(crate) options: LiveOptions,
    /// Whether the client ends utterances, each of which is then transcribed as a whole.
    pub(crate) is_manual: bool,
}

impl Setup {
    /// Setup of a realtime session.
    ///
    /// # Errors
    /// 400 with the field, what was expected and what was found.
    pub(crate) fn of(config: &Config) -> ApiResult<Self> {
        let mut options = config.live_options()?;
        options.decoding.word_timestamps = config.has_logprobs;
        Ok(Self {
            model: config.model.clone(),
            options,
            is_manual: config.turn_detection.is_none(),
        })
    }
}

/// A running session. Dropping it ends its task and cancels its job.
#[derive(Debug)]
pub(crate) struct LiveSession {
    pub(crate) inbox: Arc<Inbox>,
    updates: mpsc::UnboundedReceiver<Update>,
    task: JoinHandle<()>,
}

impl LiveSession {
    /// Starts a session, which opens its model.
    pub(crate) fn start(state: &AppState, setup: Setup, trace: LiveTrace) -> Self {
        let inbox = Arc::<Inbox>::default();
        // Pending audio bounds the updates.
        let (sender, updates) = mpsc::unbounded_channel();
        let record = Record::new(Arc::clone(state.metrics()), trace);
        let worker = Worker::new(state.clone(), Arc::clone(&inbox), sender, setup, record);
        Self { inbox, updates, task: tokio::spawn(worker.run()) }
    }

    /// The next update; `None` once the session cannot go on.
    pub(crate) async fn update(&mut self) -> Option<Update> {
        self.updates.recv().await
    }
}

impl Drop for LiveSession {
    fn drop(&mut self) {
        self.task.abort();
    }
}
