//! A model with a window decoder of its own: one recording at a time.

use stonechat_nn::KvDType;

use crate::audio_source::Samples;
use crate::cancel::CancelToken;
use crate::error::Error;
use crate::model::Model;
use crate::options::Options;
use crate::timings::Timings;
use crate::transcript::{Event, Segment, Transcript};
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
    /// Allocates the state of recordings with `options`. Recordings may have other options; a larger state is then
    /// allocated at their start.
    ///
    /// ```no_run
    /// use stonechat_formats::ModelFile;
    /// use stonechat_nn::{Cpu, KvDType};
    /// use stonechat_whisper::{Language, Model, Options, Transcriber};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let samples: Vec<f32> = Vec::new();
    /// let model = Model::load(Cpu::new(0)?, &ModelFile::open("base.gguf")?, |_| {})?;
    /// let options = Options { language: Language::find("en"), ..Options::default() };
    /// let mut transcriber = Transcriber::new(&model, &options, KvDType::F16)?;
    /// let transcript = transcriber.transcribe(&samples, &options, |_| {})?;
    /// println!("{}", transcript.text);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If an option does not fit the model or the device is out of memory.
    pub fn new(model: &Model, options: &Options, kv_dtype: KvDType) -> Result<Self, Error> {
        let decoder = WindowDecoder::for_options(model, options, kv_dtype)?;
        Ok(Self { decoder, cancel: CancelToken::new() })
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
        samples: impl Into<Samples<'a>>,
        options: &Options,
    ) -> Result<Transcription<'a>, Error> {
        let transcription = Transcription::new(self.model(), samples, options)?;
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
        samples: impl Into<Samples<'a>>,
        options: &Options,
        on_event: impl FnMut(Event) + Send,
    ) -> Result<Transcript, Error> {
        pollster::block_on(self.transcribe_async(samples, options, on_event))
    }

    /// Transcribes a recording without blocking.
    ///
    /// # Errors
    /// As [`transcribe`](Self::transcribe).
    pub async fn transcribe_async<'a>(
        &mut self,
        samples: impl Into<Samples<'a>>,
        options: &Options,
        mut on_event: impl FnMut(Event) + Send,
    ) -> Result<Transcript, Error> {
        let mut transcription = self.start(samples, options)?;
        while !transcription.is_ended() {
            self.step(&mut transcription).await?;
            transcription.report(&mut on_event);
        }
        Ok(transcription.into_transcript())
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
            result = Transcription::step([&mut *run], &mut self.decoder).await;
        }
        if result.is_err() {
            run.cancel();
        }
        result
    }
}
