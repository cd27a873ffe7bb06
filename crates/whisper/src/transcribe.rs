//! Entry points: recordings to transcripts.
//!
//! All of them call `start`, which selects the clips, else the speech, else the whole recording, and
//! with a batch size cuts it into chunks.

use std::ops::Range;

use stonechat_nn::Backend;

use crate::audio_source::AudioSource;
use crate::chunking;
use crate::error::Error;
use crate::options::Options;
use crate::transcriber::Transcriber;
use crate::transcript::{Progress, Transcript};
use crate::transcription::Transcription;

impl<B: Backend> Transcriber<B> {
    /// Transcribes 16 kHz mono samples; blocks until done.
    ///
    /// # Errors
    /// If an option does not fit the model or the device fails.
    pub fn transcribe(
        &mut self,
        samples: &[f32],
        options: &Options,
        on_progress: &mut (dyn FnMut(Progress<'_>) + Send),
    ) -> Result<Transcript, Error> {
        pollster::block_on(self.transcribe_async(samples, options, on_progress))
    }

    /// Transcribes 16 kHz mono samples without blocking.
    ///
    /// # Errors
    /// If an option does not fit the model or the device fails.
    pub async fn transcribe_async(
        &mut self,
        samples: &[f32],
        options: &Options,
        on_progress: &mut (dyn FnMut(Progress<'_>) + Send),
    ) -> Result<Transcript, Error> {
        self.segments_async(samples, options).await?.run(on_progress).await
    }

    /// Iterates over the segments of 16 kHz mono samples, each as soon as it is final; blocks in
    /// between.
    ///
    /// # Errors
    /// If an option does not fit the model or the device fails.
    pub fn segments<'a>(
        &'a mut self,
        samples: &'a [f32],
        options: &'a Options,
    ) -> Result<Transcription<'a, B>, Error> {
        pollster::block_on(self.segments_async(samples, options))
    }

    /// Starts a transcription of 16 kHz mono samples without blocking; see
    /// [`Transcription::next_async`].
    ///
    /// # Errors
    /// If an option does not fit the model or the device fails.
    pub async fn segments_async<'a>(
        &'a mut self,
        samples: &'a [f32],
        options: &'a Options,
    ) -> Result<Transcription<'a, B>, Error> {
        options.validate()?;
        let speech = options.find_speech(samples, 1)?;
        self.start(samples, speech, options).await
    }

    /// Transcribes 16 kHz mono samples with speech ranges found beforehand by
    /// [`Options::find_speech`], for example while another recording was transcribed; blocks until
    /// done.
    ///
    /// # Errors
    /// If the ranges are not ascending, an option does not fit the model or the device fails.
    pub fn transcribe_speech(
        &mut self,
        samples: &[f32],
        speech: Option<Vec<Range<usize>>>,
        options: &Options,
        on_progress: &mut (dyn FnMut(Progress<'_>) + Send),
    ) -> Result<Transcript, Error> {
        options.validate()?;
        pollster::block_on(async {
            self.start(samples, speech, options).await?.run(on_progress).await
        })
    }

    async fn start<'a>(
        &'a mut self,
        samples: &'a [f32],
        speech: Option<Vec<Range<usize>>>,
        options: &'a Options,
    ) -> Result<Transcription<'a, B>, Error> {
        let (mut audio, mut chunks);
        if options.clip_timestamps.is_empty() {
            audio = match speech {
                Some(speech) => AudioSource::speech(samples, speech)?,
                None => AudioSource::whole(samples),
            };
            let n_samples = audio.samples.len();
            chunks = Vec::from_iter((n_samples > 0).then_some(0..n_samples));
        } else {
            audio = AudioSource::whole(samples);
            chunks = options.clips(samples.len());
        }
        if options.n_windows() > 1 {
            let n_uncut = chunks.len();
            let cut = |range| chunking::cut(&audio.samples, range, options.n_windows());
            chunks = chunks.into_iter().flat_map(cut).collect();
            audio.is_batched = chunks.len() > n_uncut;
        }
        Transcription::new(self, audio, chunks, options).await
    }
}
