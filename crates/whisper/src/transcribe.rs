//! The front door: a model with its buffers, and what it gives.

use std::ops::{AddAssign, Range};
use std::time::Duration;

use stonechat_nn::{Backend, KvDType};
use web_time::Instant;

use crate::ranges;
use crate::track::Track;
use crate::transcription::{Listened, Transcription};
use crate::window::Scratch;
use crate::{
    Batch, CancelToken, DecoderState, EncoderState, Error, Language, Model, Options,
    WINDOW_SAMPLES, Word,
};

/// A stretch of text with its times; the fields are openai/whisper's.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize)]
pub struct Segment {
    /// Index in the transcript.
    pub id: usize,
    /// First mel frame of the window that it was decoded from.
    pub seek: usize,
    /// Start in seconds.
    pub start: f64,
    /// End in seconds.
    pub end: f64,
    /// Text, with the leading space that separates it from the text before.
    pub text: String,
    /// Tokens, timestamps included.
    pub tokens: Vec<u32>,
    /// What each token spells.
    #[serde(skip)]
    pub token_texts: Vec<String>,
    /// The probability of each token; 1 of those of a prefix that was given.
    #[serde(skip)]
    pub token_probabilities: Vec<f64>,
    /// Start and end of each token in seconds, inside those of its word; none unless words were asked for.
    #[serde(skip)]
    pub token_times: Vec<(f64, f64)>,
    /// Temperature that the window was decoded at.
    pub temperature: f32,
    /// Mean log-probability of the window's tokens.
    pub avg_logprob: f64,
    /// Compression ratio of the window's text.
    pub compression_ratio: f64,
    /// Probability that the window holds no speech.
    pub no_speech_prob: f64,
    /// Words with their times, if they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub words: Option<Vec<Word>>,
    /// Who speaks, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speaker: Option<String>,
}

/// A whole recording.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Transcript {
    /// The text of all segments.
    pub text: String,
    /// Segments in order.
    pub segments: Vec<Segment>,
    /// Code of the spoken language.
    pub language: String,
    /// Whether the run was cancelled: this is what was finished before.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cancelled: bool,
}

/// News while a recording is being transcribed.
#[derive(Debug, Clone, Copy)]
pub enum Progress<'a> {
    /// The language was detected, with its probability.
    Language(Language, f32),
    /// A segment is final.
    Segment(&'a Segment),
    /// Samples done and samples in all.
    Position(usize, usize),
}

/// Time spent in each stage since the transcriber was made, and work done.
#[derive(Debug, Clone, Copy, Default)]
pub struct Timings {
    /// Log-mel spectrograms.
    pub mel: Duration,
    /// Encoder, with the projection of its output for the decoder.
    pub encode: Duration,
    /// Decoder and sampling.
    pub decode: Duration,
    /// Word times.
    pub align: Duration,
    /// Windows encoded.
    pub windows: usize,
    /// Windows decoded again at a higher temperature.
    pub fallbacks: usize,
    /// Tokens kept.
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

/// A model with the buffers to run it on one recording at a time.
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
    /// Makes the buffers that the default options need; `kv_dtype` is the type of cached keys and
    /// values.
    ///
    /// # Errors
    /// If the device is full.
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

    /// From now on, runs end early once `token` is cancelled and give what was finished.
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

    /// Where the time went.
    #[must_use]
    pub fn timings(&self) -> Timings {
        self.timings
    }

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

    /// The segments of 16 kHz mono samples, each given as soon as it is final; blocks meanwhile.
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

    /// Like [`transcribe`](Self::transcribe), for callers that may not block.
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

    /// Transcribes stretches of 16 kHz mono samples, for example where somebody speaks. Neighbours
    /// that fit a window together are heard in one, with what is between them; times are those of the
    /// whole recording.
    ///
    /// # Errors
    /// If the ranges are not ascending, an option does not fit the model or the device fails.
    pub async fn transcribe_ranges_async(
        &mut self,
        samples: &[f32],
        ranges: &[Range<usize>],
        options: &Options,
        on_progress: &mut (dyn FnMut(Progress<'_>) + Send),
    ) -> Result<Transcript, Error> {
        options.validate()?;
        let ranges = ranges::pack(ranges, samples.len())?;
        let run = Transcription::new(self, Listened::all(samples), ranges, options).await?;
        run.run(on_progress).await
    }

    /// Like [`transcribe_ranges_async`](Self::transcribe_ranges_async); blocks until done.
    ///
    /// # Errors
    /// If the ranges are not ascending, an option does not fit the model or the device fails.
    pub fn transcribe_ranges(
        &mut self,
        samples: &[f32],
        ranges: &[Range<usize>],
        options: &Options,
        on_progress: &mut (dyn FnMut(Progress<'_>) + Send),
    ) -> Result<Transcript, Error> {
        pollster::block_on(self.transcribe_ranges_async(samples, ranges, options, on_progress))
    }

    /// Checks options with the model and makes the buffers that they need.
    pub(crate) fn prepare(&mut self, options: &Options, n_windows: usize) -> Result<(), Error> {
        options.validate_for(self.model.config())?;
        self.make_room(n_windows, options.n_sequences())?;
        if options.word_timestamps {
            self.model.enable_alignment(&mut self.decoder)?;
        }
        Ok(())
    }

    /// Makes the decoder's buffers anew if they are too small.
    fn make_room(&mut self, n_windows: usize, n_sequences: usize) -> Result<(), Error> {
        let (has_windows, has_sequences) = (self.decoder.n_windows(), self.decoder.n_sequences());
        if n_windows > has_windows || n_sequences > has_sequences {
            let (n_windows, n_sequences) =
                (n_windows.max(has_windows), n_sequences.max(has_sequences));
            self.decoder = self.model.decoder_state(n_windows, n_sequences, self.kv_dtype)?;
            self.model.warm_up(&mut self.encoder, &mut self.decoder)?;
        }
        Ok(())
    }

    /// The track of a stretch, which may be a piece of a longer one.
    pub(crate) fn track(&mut self, samples: &[f32], range: Range<usize>, is_piece: bool) -> Track {
        let started = Instant::now();
        let mel = self.model.mel(&samples[range.clone()], WINDOW_SAMPLES);
        let track = Track::new(range, mel, is_piece);
        self.timings.mel += started.elapsed();
        track
    }

    /// The language when it need not be detected.
    pub(crate) fn known_language(&self, options: &Options) -> Result<Option<Language>, Error> {
        let special = self.model.special();
        let english = Language::find("en");
        if !special.multilingual {
            if let Some(other) = options.language.filter(|l| Some(*l) != english) {
                let expected = "en (the model is English-only)";
                return Err(Error::Language { got: other.name.to_owned(), expected });
            }
            if options.task == crate::Task::Translate {
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

    /// `<|startoftranscript|>`, language, task and, if asked for, `<|notimestamps|>`.
    pub(crate) fn start_sequence(
        &self,
        language: Language,
        options: &Options,
    ) -> Result<Vec<u32>, Error> {
        let special = self.model.special();
        let mut start = vec![special.sot];
        if special.multilingual {
            let token = special.language(language).ok_or_else(|| Error::Language {
                got: language.name.to_owned(),
                expected: "one of the model's 99 languages",
            })?;
            start.extend([token, special.task(options.task)]);
        }
        if options.without_timestamps {
            start.push(special.no_timestamps);
        }
        Ok(start)
    }

    /// Encodes `mel`, `[WINDOW_FRAMES, n_mels]`, for window `window` of the decoder.
    pub(crate) fn encode(&mut self, mel: &[f32], window: usize) {
        let started = Instant::now();
        self.model.encode(&mut self.encoder, mel);
        self.model.set_audio(&mut self.decoder, window, &self.encoder);
        self.timings.encode += started.elapsed();
        self.timings.windows += 1;
    }

    /// The most probable language of the first 30 s of `ranges`, its probability, and where the
    /// window begins that was encoded for it, if it is the first one of the first track.
    pub(crate) async fn detect_language(
        &mut self,
        samples: &[f32],
        ranges: &[Range<usize>],
        first: Option<&Track>,
    ) -> Result<(Language, f32, Option<usize>), Error> {
        // A short window says too little.
        let is_enough = |track: &&Track| ranges.len() == 1 || 2 * track.len() > WINDOW_SAMPLES;
        let first = first.filter(is_enough);
        let window = if let Some(track) = first {
            track.window()
        } else {
            let speech = ranges.iter().flat_map(|range| &samples[range.clone()]);
            let speech: Vec<f32> = speech.take(WINDOW_SAMPLES).copied().collect();
            self.track(&speech, 0..speech.len(), false).window()
        };
        self.encode(&window, 0);

        let special = self.model.special();
        let batch = Batch { tokens: &[special.sot], sequences: &[0], outputs: &[0] };
        self.decoder.clear();
        self.model.decode(&mut self.decoder, batch)?;
        let mut logits = vec![0.0; self.model.config().vocab_size];
        self.model.read_logits(&self.decoder, 0, &mut logits).await?;
        let start = special.sot as usize + 1;
        let logits = &logits[start..start + special.languages().len()];
        let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap_or(0);
        let total: f32 = logits.iter().map(|l| (l - logits[best]).exp()).sum();
        Ok((special.languages()[best], 1.0 / total, first.map(Track::window_start)))
    }
}
