//! A model with a window decoder of its own: one recording at a time.

use crate::audio_source::Recording;
use crate::cancel::CancelToken;
use crate::error::Error;
use crate::model::Model;
use crate::options::Options;
use crate::timings::Timings;
use crate::transcript::{Progress, Segment, Transcript};
use crate::transcription::Transcription;
use crate::window_decoder::WindowDecoder;

/// A model with a [`WindowDecoder`] of its own. Programs that transcribe several recordings in one batch drive a
/// [`Transcription`] of each by one decoder instead.
#[derive(Debug)]
pub struct Transcriber {
    decoder: WindowDecoder,
    cancel: CancelToken,
}

impl Transcriber {
    /// Wraps a decoder.
    #[must_use]
    pub fn new(decoder: WindowDecoder) -> Self {
        Self { decoder, cancel: CancelToken::new() }
    }

    /// Sets the token that cancels this and later runs; a cancelled run returns the segments that
    /// are final.
    pub fn cancelled_by(&mut self, token: &CancelToken) {
        self.cancel = token.clone();
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &Model {
        self.decoder.model()
    }

    /// Time and work so far.
    #[must_use]
    pub fn timings(&self) -> Timings {
        self.decoder.timings()
    }

    /// Starts a recording, whose segments [`next_segment`](Self::next_segment) returns; grows the state to its options.
    ///
    /// # Errors
    /// If an option does not fit the model, ranges of speech are not ascending, or the device is out of memory.
    pub fn start<'a>(
        &mut self,
        recording: impl Into<Recording<'a>>,
        options: &Options,
    ) -> Result<Transcription<'a>, Error> {
        let transcription = Transcription::new(self.model(), recording, options)?;
        self.decoder.reserve(options, transcription.max_windows())?;
        Ok(transcription)
    }

    /// Transcribes a recording; blocks until done.
    ///
    /// # Errors
    /// As [`start`](Self::start), or if the device fails.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn transcribe<'a>(
        &mut self,
        recording: impl Into<Recording<'a>>,
        options: &Options,
        on_progress: &mut (dyn FnMut(Progress<'_>) + Send),
    ) -> Result<Transcript, Error> {
        pollster::block_on(self.transcribe_async(recording, options, on_progress))
    }

    /// Transcribes a recording without blocking.
    ///
    /// # Errors
    /// As [`transcribe`](Self::transcribe).
    pub async fn transcribe_async<'a>(
        &mut self,
        recording: impl Into<Recording<'a>>,
        options: &Options,
        on_progress: &mut (dyn FnMut(Progress<'_>) + Send),
    ) -> Result<Transcript, Error> {
        let mut transcription = self.start(recording, options)?;
        let mut transcript = Transcript::default();
        while !transcription.is_ended() {
            self.step(&mut transcription).await?;
            transcription.report(&mut transcript, on_progress);
        }
        Ok(transcript)
    }

    /// Returns the next segment as soon as it is final; `None` at the end. Blocks until then.
    ///
    /// # Errors
    /// If the device fails, which ends the transcription.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn next_segment(&mut self, run: &mut Transcription<'_>) -> Result<Option<Segment>, Error> {
        pollster::block_on(self.next_segment_async(run))
    }

    /// As [`next_segment`](Self::next_segment), without blocking.
    ///
    /// # Errors
    /// As [`next_segment`](Self::next_segment).
    pub async fn next_segment_async(
        &mut self,
        run: &mut Transcription<'_>,
    ) -> Result<Option<Segment>, Error> {
        loop {
            if let Some(segment) = run.next_segment() {
                return Ok(Some(segment));
            }
            if run.is_ended() {
                return Ok(None);
            }
            self.step(run).await?;
        }
    }

    /// Runs one step of a transcription.
    async fn step(&mut self, run: &mut Transcription<'_>) -> Result<(), Error> {
        if self.cancel.is_cancelled() {
            run.cancel();
            return Ok(());
        }
        let mut result = run.advance(&mut self.decoder);
        if result.is_ok() && !run.is_ended() {
            let n = self.decoder.state_options().n_encoded;
            result = self.decoder.step_while(|timings| run.prepare_chunks(n, timings)).await;
        }
        if result.is_err() {
            run.cancel();
        }
        result
    }
}
