//! Tasks that prepare recordings while the engine runs others: decoding, voice activity detection, spectrogram.
//!
//! ```text
//! Whisper::transcribe ──► queue ──► N_TASKS tasks ──► engine
//! ```

use std::sync::{Arc, Weak};

use futures_channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures_util::lock::Mutex;
use stonechat_whisper::{CancelToken, Event, Model, Segment, Transcript, Transcription};

use crate::engine::catch;
use crate::job::JobSender;
use crate::runtime::{Task, yield_now};
use crate::{Error, Recording};

/// Threads for files and bytes in memory; in a browser a task of the one thread. Decoding is far faster than transcription.
const N_TASKS: usize = if cfg!(target_arch = "wasm32") { 1 } else { 2 };

/// Number of recordings of a model that have not ended: its weak references.
pub(crate) type RecordingCount = Arc<()>;

/// Receiver of the events and of the result of a recording.
pub(crate) struct Client {
    pub(crate) sender: JobSender<Segment, Transcript>,
    /// Cancels the recording beside the token of its job.
    pub(crate) cancel: CancelToken,
    /// Dropped before `on_event`, whose end may start the next recording.
    pub(crate) count: Weak<()>,
    pub(crate) on_event: Box<dyn FnMut(Event) + Send>,
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

/// A [`Recording`] in the queue, or a [`Transcription`] that is ready for the batch or in it.
pub(crate) struct Run<A> {
    pub(crate) audio: A,
    pub(crate) client: Client,
}

/// Recording that is ready for the engine, or the job of one that cannot be transcribed.
pub(crate) type Prepared =
    Result<Run<Transcription<'static>>, (JobSender<Segment, Transcript>, Error)>;

/// Starts the tasks, which end once the queue is closed. The returned receiver is closed then, too.
///
/// # Errors
/// If a thread cannot be started.
pub(crate) fn start(
    queue: UnboundedReceiver<Run<Recording>>,
    model: &Model,
) -> Result<UnboundedReceiver<Prepared>, Error> {
    let (to_engine, prepared) = unbounded();
    let queue = Arc::new(Mutex::new(queue));
    for _ in 0..N_TASKS {
        let (queue, model, to_engine) = (Arc::clone(&queue), model.clone(), to_engine.clone());
        // A thread inherits the priority of the engine's.
        Task::spawn("stonechat-audio", false, move || serve(queue, model, to_engine))?;
    }
    Ok(prepared)
}

/// Prepares the recordings of the queue until it is closed.
async fn serve(
    queue: Arc<Mutex<UnboundedReceiver<Run<Recording>>>>,
    model: Model,
    to_engine: UnboundedSender<Prepared>,
) {
    loop {
        let request = queue.lock().await.recv().await;
        let Ok(request) = request else { return };
        yield_now().await;
        if let Some(prepared) = prepare(request, &model) {
            // An engine that stopped drops it.
            let _ = to_engine.unbounded_send(prepared);
        }
        yield_now().await;
    }
}

/// Prepares a recording for the engine; `None` if nobody waits for it.
fn prepare(request: Run<Recording>, model: &Model) -> Option<Prepared> {
    let Run { audio: recording, client } = request;
    if client.sender.is_abandoned() {
        return None;
    }
    let result = catch(|| {
        let token = client.sender.cancel_token();
        let (samples, options) =
            recording.decode(|| client.cancel.is_cancelled() || token.is_cancelled())?;
        let mut transcription = Transcription::new(model, samples, &options)?;
        // The engine computes the spectrogram on all threads if there is no other recording.
        if client.count.weak_count() > 1 {
            transcription.prepare();
        }
        Ok(transcription)
    });
    Some(match result {
        Ok(audio) => Ok(Run { audio, client }),
        Err(error) => Err((client.sender, error)),
    })
}
