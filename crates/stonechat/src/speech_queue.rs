//! Threads that prepare recordings while the engine runs others: decoding, voice activity detection, spectrogram.
//!
//! ```text
//! Whisper::transcribe ──► queue ──► N_THREADS threads ─────────┬──► engine
//!                                         └─► one per reader ──┘
//! ```
//!
//! A reader has a thread of its own: it waits for its bytes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;

use stonechat_whisper::{CancelToken, Model, Options, Segment, Transcript, Transcription};

use crate::job::JobSender;
use crate::{Error, Recording};

/// Threads for files and bytes in memory. Decoding is far faster than transcription.
const N_THREADS: usize = 2;

/// Number of recordings that wait or are prepared.
#[derive(Debug, Clone, Default)]
pub(crate) struct WaitingCount(Arc<AtomicUsize>);

impl WaitingCount {
    pub(crate) fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts a recording until the guard is dropped.
    pub(crate) fn guard(&self) -> WaitingGuard {
        self.0.fetch_add(1, Ordering::Relaxed);
        WaitingGuard(Arc::clone(&self.0))
    }
}

/// Recording that is counted.
#[derive(Debug)]
pub(crate) struct WaitingGuard(Arc<AtomicUsize>);

impl Drop for WaitingGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Recording in the queue.
#[derive(Debug)]
pub(crate) struct QueuedRecording {
    pub(crate) recording: Recording,
    pub(crate) sender: JobSender<Segment, Transcript>,
    pub(crate) guard: WaitingGuard,
}

/// Recording that is ready for the batch or in it.
pub(crate) struct Run {
    pub(crate) transcription: Transcription<'static>,
    pub(crate) options: Options,
    pub(crate) sender: JobSender<Segment, Transcript>,
    pub(crate) transcript: Transcript,
    /// Counts the recording until it is in the batch.
    pub(crate) guard: Option<WaitingGuard>,
}

/// Recording that is ready for the engine, or the job of one that cannot be transcribed.
pub(crate) type Prepared = Result<Run, (JobSender<Segment, Transcript>, Error)>;

/// Starts the threads, which end once the queue is disconnected. Then the returned one is, too.
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
                    // An engine that stopped drops it.
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
        request.sender.end(Err(error));
    }
}

/// Prepares a recording for the engine; `None` if nobody waits for it.
fn prepare(request: QueuedRecording, model: &Model) -> Option<Prepared> {
    let QueuedRecording { recording, guard, sender } = request;
    if sender.is_abandoned() {
        return None;
    }
    let cancel = sender.cancel_token();
    let result = catch_unwind(AssertUnwindSafe(|| transcription(recording, model, cancel)));
    let result = result.unwrap_or_else(|payload| Err(Error::panicked(&*payload)));
    Some(match result {
        Ok((transcription, options)) => {
            let (transcript, guard) = (Transcript::default(), Some(guard));
            Ok(Run { transcription, options, sender, transcript, guard })
        }
        Err(error) => Err((sender, error)),
    })
}

fn transcription(
    recording: Recording,
    model: &Model,
    cancel: &CancelToken,
) -> Result<(Transcription<'static>, Options), Error> {
    let (samples, options) = recording.decode(cancel)?;
    let mut transcription = Transcription::new(model, samples, &options)?;
    transcription.prepare();
    Ok((transcription, options))
}
