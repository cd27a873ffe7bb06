//! Threads that prepare recordings while the engine runs others: decoding, voice activity detection, spectrogram.
//!
//! ```text
//! Whisper::transcribe ──► queue ──► N_THREADS threads ─────────┬──► engine
//!                                         └─► one per reader ──┘
//! ```
//!
//! A reader has a thread of its own: it waits for its bytes.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;

use stonechat_whisper::{CancelToken, Event, Model, Options, Segment, Transcript, Transcription};

use crate::job::JobSender;
use crate::{Error, Recording};

/// Threads for files and bytes in memory. Decoding is far faster than transcription.
const N_THREADS: usize = 2;

/// Number of recordings of a model that have not ended.
#[derive(Debug, Clone, Default)]
pub(crate) struct RecordingCount(Arc<AtomicUsize>);

impl RecordingCount {
    pub(crate) fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts a recording until the guard is dropped.
    pub(crate) fn guard(&self) -> CountGuard {
        self.0.fetch_add(1, Ordering::Relaxed);
        CountGuard(self.clone())
    }
}

/// Recording that is counted.
#[derive(Debug)]
pub(crate) struct CountGuard(RecordingCount);

impl Drop for CountGuard {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Receiver of the events and of the result of a recording.
pub(crate) struct Client {
    pub(crate) sender: JobSender<Segment, Transcript>,
    /// Cancels the recording beside the token of its job.
    pub(crate) cancel: CancelToken,
    /// Dropped before `on_event`, whose end may start the next recording.
    pub(crate) guard: CountGuard,
    pub(crate) on_event: Box<dyn FnMut(Event) + Send>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("sender", &self.sender).finish_non_exhaustive()
    }
}

impl Client {
    /// Whether the recording was cancelled or nobody waits for it.
    pub(crate) fn is_ended(&self) -> bool {
        self.cancel.is_cancelled() || self.sender.is_ended()
    }

    pub(crate) fn send(&mut self, event: Event) {
        if let Event::Segment(segment) = &event {
            self.sender.send(segment.clone());
        }
        (self.on_event)(event);
    }
}

/// Recording in the queue.
#[derive(Debug)]
pub(crate) struct QueuedRecording {
    pub(crate) recording: Recording,
    pub(crate) client: Client,
}

/// Recording that is ready for the batch or in it.
pub(crate) struct Run {
    pub(crate) transcription: Transcription<'static>,
    pub(crate) options: Options,
    pub(crate) client: Client,
    pub(crate) transcript: Transcript,
}

/// Recording that is ready for the engine, or the job of one that cannot be transcribed.
pub(crate) type Prepared = Result<Run, (JobSender<Segment, Transcript>, Error)>;

/// Starts the threads, which end once the queue is disconnected. The returned receiver is disconnected then, too.
///
/// # Errors
/// If a thread cannot be started.
pub(crate) fn start(
    queue: Receiver<QueuedRecording>,
    model: &Model,
) -> Result<Receiver<Prepared>, Error> {
    let (to_engine, prepared) = channel();
    let (queue, to_engine) = (Arc::new(Mutex::new(queue)), Arc::new(to_engine));
    for _ in 0..N_THREADS {
        let (queue, model, to_engine) = (Arc::clone(&queue), model.clone(), Arc::clone(&to_engine));
        let body = move || {
            loop {
                let request = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                let Ok(request) = request else { return };
                if request.recording.may_block() {
                    spawn_reader(request, &model, Arc::downgrade(&to_engine));
                } else if let Some(prepared) = prepare(request, &model) {
                    // A stopped engine drops the recording.
                    let _ = to_engine.send(prepared);
                }
            }
        };
        spawn(body)?;
    }
    Ok(prepared)
}

fn spawn(body: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    let thread = thread::Builder::new().name("stonechat-audio".to_owned()).spawn(body);
    thread.map(drop).map_err(|source| Error::Thread { source })
}

/// Prepares a recording on a thread of its own. A reader that stalls does not keep the engine running.
fn spawn_reader(request: QueuedRecording, model: &Model, to_engine: Weak<Sender<Prepared>>) {
    let model = model.clone();
    let shared = Arc::new(Mutex::new(Some(request)));
    let own = Arc::clone(&shared);
    let take = |shared: &Mutex<Option<QueuedRecording>>| {
        shared.lock().unwrap_or_else(PoisonError::into_inner).take()
    };
    let body = move || {
        let prepared = take(&own).and_then(|request| prepare(request, &model));
        if let (Some(prepared), Some(to_engine)) = (prepared, to_engine.upgrade()) {
            let _ = to_engine.send(prepared);
        }
    };
    if let Err(error) = spawn(body)
        && let Some(request) = take(&shared)
    {
        request.client.sender.end(Err(error));
    }
}

/// Prepares a recording for the engine; `None` if nobody waits for it.
fn prepare(request: QueuedRecording, model: &Model) -> Option<Prepared> {
    let QueuedRecording { recording, client } = request;
    if client.sender.is_abandoned() {
        return None;
    }
    let result = catch_unwind(AssertUnwindSafe(|| transcription(recording, model, &client)));
    let result = result.unwrap_or_else(|payload| Err(Error::panicked(&*payload)));
    Some(match result {
        Ok((transcription, options)) => {
            Ok(Run { transcription, options, client, transcript: Transcript::default() })
        }
        Err(error) => Err((client.sender, error)),
    })
}

fn transcription(
    recording: Recording,
    model: &Model,
    client: &Client,
) -> Result<(Transcription<'static>, Options), Error> {
    let token = client.sender.cancel_token();
    let is_cancelled = || client.cancel.is_cancelled() || token.is_cancelled();
    let (samples, options) = recording.decode(is_cancelled)?;
    let mut transcription = Transcription::new(model, samples, &options)?;
    // The engine computes the spectrogram on all threads if there is no other recording.
    if client.guard.0.get() > 1 {
        transcription.prepare();
    }
    Ok((transcription, options))
}
