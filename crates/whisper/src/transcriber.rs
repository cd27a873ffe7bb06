//! A model with the buffers to run it.

use std::ops::{AddAssign, Range};
use std::time::Duration;

use stonechat_nn::{Backend, Batch, KvDType};
use web_time::Instant;

use crate::WINDOW_SAMPLES;
use crate::cancel::CancelToken;
use crate::chunk::Chunk;
use crate::decoder::DecoderState;
use crate::encoder::EncoderState;
use crate::error::Error;
use crate::languages::Language;
use crate::model::Model;
use crate::options::{Options, Task};
use crate::window::Scratch;

/// Wall-clock time and work since the transcriber was made.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct Timings {
    /// Time for log-mel spectrograms.
    pub mel: Duration,
    /// Time for the encoder and the keys and values of cross-attention.
    pub encode: Duration,
    /// Time for the decoder and sampling.
    pub decode: Duration,
    /// Time for word alignment.
    pub align: Duration,
    /// Windows encoded.
    pub windows: usize,
    /// Windows decoded again at a higher temperature.
    pub fallbacks: usize,
    /// Tokens of the results kept.
    pub tokens: usize,
}

impl AddAssign for Timings {
    fn add_assign(&mut self, other: Self) {
        self.mel += other.mel;
        self.encode += other.encode;
        self.decode += other.decode;
        self.align += other.align;
        self.windows += other.windows;
        self.fallbacks += other.fallbacks;
        self.tokens += other.tokens;
    }
}

/// A model with its encoder and decoder state; runs one recording at a time.
#[derive(Debug)]
pub struct Transcriber<B: Backend> {
    pub(crate) model: Model<B>,
    kv_dtype: KvDType,
    encoder: EncoderState<B>,
    pub(crate) decoder: DecoderState<B>,
    pub(crate) scratch: Scratch,
    pub(crate) timings: Timings,
    pub(crate) cancel: CancelToken,
}

impl<B: Backend> Transcriber<B> {
    /// Allocates and warms up the state for default options; `kv_dtype` is the type of cached keys
    /// and values.
    ///
    /// # Errors
    /// If the device is out of memory.
    pub fn new(model: Model<B>, kv_dtype: KvDType) -> Result<Self, Error> {
        let mut encoder = model.encoder_state(kv_dtype)?;
        let mut decoder = model.decoder_state(1, Options::default().n_sequences(), kv_dtype)?;
        model.warm_up(&mut encoder, &mut decoder)?;
        Ok(Self {
            model,
            kv_dtype,
            encoder,
            decoder,
            scratch: Scratch::default(),
            timings: Timings::default(),
            cancel: CancelToken::new(),
        })
    }

    /// Sets the token that cancels this and later runs; a cancelled run returns the segments that
    /// are final.
    pub fn cancelled_by(&mut self, token: &CancelToken) {
        self.cancel = token.clone();
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &Model<B> {
        &self.model
    }

    /// Time and work so far.
    #[must_use]
    pub fn timings(&self) -> Timings {
        self.timings
    }

    /// Checks options against the model and allocates the state they need.
    pub(crate) fn prepare(&mut self, options: &Options, n_windows: usize) -> Result<(), Error> {
        options.validate_for(self.model.config())?;
        self.grow_decoder(n_windows, options.n_sequences())?;
        if options.word_timestamps {
            self.model.enable_alignment(&mut self.decoder)?;
        }
        Ok(())
    }

    /// Replaces the decoder state if it is too small.
    fn grow_decoder(&mut self, n_windows: usize, n_sequences: usize) -> Result<(), Error> {
        let (max_windows, max_sequences) = (self.decoder.n_windows(), self.decoder.n_sequences());
        if n_windows > max_windows || n_sequences > max_sequences {
            let (n_windows, n_sequences) =
                (n_windows.max(max_windows), n_sequences.max(max_sequences));
            self.decoder = self.model.decoder_state(n_windows, n_sequences, self.kv_dtype)?;
            self.model.warm_up(&mut self.encoder, &mut self.decoder)?;
        }
        Ok(())
    }

    /// Computes the spectrogram of the sample range `range` and makes it a chunk.
    pub(crate) fn chunk(
        &mut self,
        samples: &[f32],
        range: Range<usize>,
        is_batched: bool,
    ) -> Chunk {
        let started = Instant::now();
        let mel = self.model.mel(&samples[range.clone()], WINDOW_SAMPLES);
        let chunk = Chunk::new(range, mel, is_batched);
        self.timings.mel += started.elapsed();
        chunk
    }

    /// Language of the run; `None` if it must be detected.
    pub(crate) fn known_language(&self, options: &Options) -> Result<Option<Language>, Error> {
        let special = self.model.special();
        let english = Language::find("en");
        if !special.multilingual {
            if let Some(other) = options.language.filter(|l| Some(*l) != english) {
                let expected = "en (the model is English-only)";
                return Err(Error::Language { got: other.name.to_owned(), expected });
            }
            if options.task == Task::Translate {
                let expected = "transcribe (the model is English-only)";
                return Err(Error::Option {
                    option: "task",
                    expected,
                    got: "translate".to_owned(),
                });
            }
            return Ok(english);
        }
        Ok(options.language)
    }

    /// `<|startoftranscript|>`, language, task and, without timestamps, `<|notimestamps|>`
    /// (openai/whisper `sot_sequence`).
    pub(crate) fn sot_sequence(
        &self,
        language: Language,
        options: &Options,
    ) -> Result<Vec<u32>, Error> {
        let special = self.model.special();
        let mut sequence = vec![special.sot];
        if special.multilingual {
            let token = special.language(language).ok_or_else(|| Error::Language {
                got: language.name.to_owned(),
                expected: "one of the model's 99 languages",
            })?;
            sequence.extend([token, special.task(options.task)]);
        }
        if options.without_timestamps {
            sequence.push(special.no_timestamps);
        }
        Ok(sequence)
    }

    /// Encodes `mel`, `[WINDOW_FRAMES, n_mels]`, for window `window` of the decoder.
    pub(crate) fn encode(&mut self, mel: &[f32], window: usize) {
        let started = Instant::now();
        self.model.encode(&mut self.encoder, mel);
        self.model.set_audio(&mut self.decoder, window, &self.encoder);
        self.timings.encode += started.elapsed();
        self.timings.windows += 1;
    }

    /// Detects the language of the first 30 s of `ranges`. Returns it with its probability and, if
    /// the first window of `first_chunk` was encoded for that, the first sample of that window.
    pub(crate) async fn detect_language(
        &mut self,
        samples: &[f32],
        ranges: &[Range<usize>],
        first_chunk: Option<&Chunk>,
    ) -> Result<(Language, f32, Option<usize>), Error> {
        // A chunk of less than half a window holds too little speech if there is more.
        let is_enough = |chunk: &&Chunk| ranges.len() == 1 || 2 * chunk.len() > WINDOW_SAMPLES;
        let first_chunk = first_chunk.filter(is_enough);
        let mel = if let Some(chunk) = first_chunk {
            chunk.window_mel()
        } else {
            let speech = ranges.iter().flat_map(|range| &samples[range.clone()]);
            let speech: Vec<f32> = speech.take(WINDOW_SAMPLES).copied().collect();
            self.chunk(&speech, 0..speech.len(), false).window_mel()
        };
        self.encode(&mel, 0);

        let special = self.model.special();
        let batch = Batch { tokens: &[special.sot], sequences: &[0], outputs: &[0] };
        self.decoder.clear();
        self.model.decode(&mut self.decoder, batch)?;
        let mut logits = vec![0.0; self.model.config().vocab_size];
        self.model.read_logits(&self.decoder, 0, &mut logits).await?;
        let first_language = special.sot as usize + 1;
        let logits = &logits[first_language..first_language + special.languages().len()];
        let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap_or(0);
        let total: f32 = logits.iter().map(|l| (l - logits[best]).exp()).sum();
        Ok((special.languages()[best], 1.0 / total, first_chunk.map(Chunk::window_start)))
    }
}
