//! Loop of a speech model: windows of all recordings in one running batch.
//!
//! ```text
//! loop:
//!     receive prepared recordings; wait if there are no others
//!     end the cancelled ones
//!     admit waiting recordings in order; one that needs a larger state waits until no other is active
//!     advance every active recording: results become segments, next windows are requested
//!     end the recordings that are done
//!     one step of the decoder
//! ```

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_channel::mpsc::UnboundedReceiver;
use futures_util::FutureExt;
use stonechat_whisper::{StateOptions, Timings, Transcript, Transcription, WindowDecoder};

use crate::Error;
use crate::engine::{OnPanic, catch};
use crate::runtime::yield_now;
use crate::speech_queue::{Prepared, RecordingCount, Run};

/// Counters of a speech engine after a step, for metrics. Totals count from the opening of the model.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct SpeechStep {
    /// Time and work.
    pub timings: Timings,
    /// Recordings that are being transcribed now.
    pub active: usize,
    /// Recordings that wait, arrive or are decoded now.
    pub waiting: usize,
    /// Seconds of audio of the waiting recordings that are decoded.
    pub waiting_seconds: f64,
    /// Recordings that ended without an error and were not cancelled.
    pub finished: usize,
    /// Seconds of audio of the finished recordings.
    pub finished_seconds: f64,
}

/// Callback that gets the counters of each step.
type StepCallback = dyn FnMut(&SpeechStep) + Send;

/// Callback of [`WhisperBuilder::on_step`](crate::WhisperBuilder::on_step).
#[derive(Default)]
pub(crate) struct OnStep(pub(crate) Option<Box<StepCallback>>);

impl fmt::Debug for OnStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OnStep").field(&self.0.is_some()).finish()
    }
}

impl Run<Transcription<'static>> {
    /// Sends the events since the last call.
    fn report(&mut self) {
        let Self { audio, client } = self;
        audio.report(&mut |event| client.send(event));
    }

    fn end(mut self) {
        self.report();
        self.client.sender.end(Ok(self.audio.into_transcript()));
    }
}

/// State of the loop.
pub(crate) struct SpeechEngine {
    decoder: WindowDecoder,
    /// Sizes of the decoder while there are no recordings.
    least: StateOptions,
    /// Maximum windows of the batch; `None`: the largest batch size of the recordings.
    max_windows: Option<usize>,
    prepared: UnboundedReceiver<Prepared>,
    /// Recordings that have no place in the batch yet.
    waiting: Vec<Run<Transcription<'static>>>,
    /// Recordings of the batch.
    active: Vec<Run<Transcription<'static>>>,
    recordings: RecordingCount,
    on_step: OnStep,
    counters: SpeechStep,
}

impl SpeechEngine {
    pub(crate) fn new(
        decoder: WindowDecoder,
        max_windows: Option<usize>,
        prepared: UnboundedReceiver<Prepared>,
        recordings: RecordingCount,
        on_step: OnStep,
    ) -> Self {
        Self {
            least: decoder.state_options(),
            decoder,
            max_windows,
            prepared,
            waiting: Vec::new(),
            active: Vec::new(),
            recordings,
            on_step,
            counters: SpeechStep::default(),
        }
    }

    /// Runs recordings until no further one can come. A panic fails those of the batch; then the decoder gets a fresh state.
    ///
    /// # Errors
    /// If the device has no memory for the fresh state.
    pub(crate) async fn run(mut self, mut on_panic: OnPanic) -> Result<(), Error> {
        loop {
            let served = AssertUnwindSafe(self.serve()).catch_unwind().await;
            let Err(payload) = served else { return Ok(()) };
            let reason = on_panic.caught(&*payload);
            for active in self.active.drain(..) {
                active.client.sender.end(Err(Error::Panicked { reason: reason.clone() }));
            }
            let (decoder, least) = (&mut self.decoder, self.least);
            catch(|| Ok(decoder.reopen(least)?))?;
        }
    }

    /// Runs recordings until no further one can come.
    async fn serve(&mut self) {
        while self.receive().await {
            self.end_cancelled();
            self.admit();
            self.advance();
            self.step().await;
            self.report();
            yield_now().await;
        }
    }

    /// Takes prepared recordings; waits for one if there is no other. False once all have ended and no further one can
    /// come.
    async fn receive(&mut self) -> bool {
        if self.active.is_empty() && self.waiting.is_empty() {
            self.shrink();
            match self.prepared.recv().await {
                Ok(prepared) => self.enqueue(prepared),
                Err(_) => return false,
            }
        }
        while let Ok(prepared) = self.prepared.try_recv() {
            self.enqueue(prepared);
        }
        true
    }

    fn enqueue(&mut self, prepared: Prepared) {
        match prepared {
            Ok(run) => self.waiting.push(run),
            // A recording that is cancelled while it is decoded has no segments.
            Err((sender, Error::Audio(stonechat_audio::Error::Cancelled))) => {
                let mut transcript = Transcript::default();
                transcript.cancelled = true;
                sender.end(Ok(transcript));
            }
            Err((sender, error)) => sender.end(Err(error)),
        }
    }

    fn end_cancelled(&mut self) {
        let waiting = self.waiting.extract_if(.., |waiting| waiting.client.is_ended());
        let active = self.active.extract_if(.., |active| active.client.is_ended());
        for mut cancelled in waiting.chain(active) {
            cancelled.audio.cancel();
            cancelled.end();
        }
    }

    /// Moves waiting recordings into the batch, in order.
    fn admit(&mut self) {
        while let Some(next) = self.waiting.first() {
            let n_windows = next.audio.max_windows().min(self.max_windows.unwrap_or(usize::MAX));
            let fits = |sizes: StateOptions| sizes.fits(next.audio.options(), n_windows);
            if self.active.is_empty() {
                if fits(self.least) {
                    self.shrink();
                }
            } else if !fits(self.decoder.state_options()) {
                return;
            }
            let next = self.waiting.remove(0);
            next.client.sender.start();
            match self.decoder.reserve(next.audio.options(), n_windows) {
                Ok(()) => self.active.push(next),
                Err(error) => next.client.sender.end(Err(error.into())),
            }
        }
    }

    /// Gives back the memory that one recording with many beams or windows took, while no other is active.
    fn shrink(&mut self) {
        if let Err(error) = self.decoder.shrink_to(self.least) {
            tracing::warn!("the state of the speech model keeps its size: {error}");
        }
    }

    /// Turns results into segments, requests windows, and ends what is done.
    fn advance(&mut self) {
        let mut index = 0;
        while let Some(active) = self.active.get_mut(index) {
            let result = active.audio.advance(&mut self.decoder);
            active.report();
            match result {
                Ok(()) if !active.audio.is_ended() => index += 1,
                Ok(()) => {
                    let ended = self.active.remove(index);
                    self.counters.finished += 1;
                    self.counters.finished_seconds += ended.audio.duration();
                    ended.end();
                }
                Err(error) => self.active.remove(index).client.sender.end(Err(error.into())),
            }
        }
    }

    /// Runs a step of the decoder. If the device fails, all active recordings do.
    async fn step(&mut self) {
        if self.active.is_empty() {
            return;
        }
        let runs = self.active.iter_mut().map(|active| &mut active.audio);
        if let Err(error) = Transcription::step(runs, &mut self.decoder).await {
            for active in self.active.drain(..) {
                active.client.sender.end(Err(Error::Step { reason: error.to_string() }));
            }
        }
    }

    fn report(&mut self) {
        self.counters = SpeechStep {
            timings: self.decoder.timings(),
            active: self.active.len(),
            waiting: Arc::weak_count(&self.recordings).saturating_sub(self.active.len()),
            waiting_seconds: self.waiting.iter().map(|waiting| waiting.audio.duration()).sum(),
            ..self.counters
        };
        if let Some(on_step) = &mut self.on_step.0 {
            on_step(&self.counters);
        }
    }
}
