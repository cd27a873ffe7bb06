//! Long audio: prompts from earlier text, windows decoded together, temperature fallback.
//!
//! A recording is one or several tracks. One after the other, each window can be told what was said
//! before it; side by side, windows do not know of each other.
//!
//! Source: openai/whisper `transcribe.py`; faster-whisper `BatchedInferencePipeline`.

use std::collections::VecDeque;
use std::ops::{AddAssign, Range};
use std::time::Duration;

use stonechat_nn::{Backend, KvDType};
use web_time::Instant;

use crate::align::Heard;
use crate::context::{Context, Prompt};
use crate::hallucination;
use crate::options::no_temperature;
use crate::ranges;
use crate::rules::Rules;
use crate::track::{Cut, Track};
use crate::window::{Attempt, Scratch, WindowRequest};
use crate::words::speech_end;
use crate::{
    Batch, CancelToken, DecoderState, EncoderState, Error, Finish, Language, Model, Options,
    WINDOW_SAMPLES, WindowResult, Word,
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
    #[serde(skip)]
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
    model: Model<B>,
    kv_dtype: KvDType,
    encoder: EncoderState<B>,
    decoder: DecoderState<B>,
    scratch: Scratch,
    timings: Timings,
    cancel: CancelToken,
}

impl<B: Backend> Transcriber<B> {
    /// Makes the buffers that the default options need; `kv_dtype` is the type of cached keys and
    /// values.
    ///
    /// # Errors
    /// If the device is full.
    pub fn new(model: Model<B>, kv_dtype: KvDType) -> Result<Self, Error> {
        let encoder = model.encoder_state(kv_dtype)?;
        let decoder = model.decoder_state(1, Options::default().n_sequences(), kv_dtype)?;
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

    /// Transcribes all of `samples` with options that were checked.
    pub(crate) async fn transcribe_all(
        &mut self,
        samples: &[f32],
        options: &Options,
        on_progress: &mut (dyn FnMut(Progress<'_>) + Send),
    ) -> Result<Transcript, Error> {
        let ranges = match options.batch_size {
            Some(batch_size) => ranges::cut(samples, batch_size),
            None => Vec::from_iter((!samples.is_empty()).then_some(0..samples.len())),
        };
        self.transcribe_tracks(samples, ranges, options, on_progress).await
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
        self.transcribe_tracks(samples, ranges, options, on_progress).await
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

    /// Transcribes stretches of `samples` as they are, one after the other or side by side.
    pub(crate) async fn transcribe_tracks(
        &mut self,
        samples: &[f32],
        ranges: Vec<Range<usize>>,
        options: &Options,
        on_progress: &mut (dyn FnMut(Progress<'_>) + Send),
    ) -> Result<Transcript, Error> {
        options.validate_for(self.model.config())?;
        let n_windows = options.batch_size.unwrap_or(1);
        self.make_room(n_windows.min(ranges.len().max(1)), options.n_sequences())?;
        if options.word_timestamps {
            self.model.enable_alignment(&mut self.decoder)?;
        }
        let mut pending = ranges.iter();
        let mut first = pending.next().map(|range| self.track(samples, range.clone()));
        let (language, mut encoded) = match self.known_language(options)? {
            Some(language) => (language, None),
            None => {
                let (language, probability, encoded) =
                    self.detect_language(samples, &ranges, first.as_ref()).await?;
                on_progress(Progress::Language(language, probability));
                (language, encoded)
            }
        };
        let written = if options.task == crate::Task::Translate { "en" } else { language.code };
        let special = *self.model.special();
        let rules = Rules::new(special, self.model.tokenizer(), options);
        let start = self.start_sequence(language, options)?;
        let first_window = ranges.first().map_or(0, |range| range.start);
        let mut context = Context::new(&self.model, start, first_window, options);
        let mut transcript = Transcript {
            text: String::new(),
            segments: Vec::new(),
            language: language.code.to_owned(),
            cancelled: false,
        };
        // In order of time; those that are done wait for those before them.
        let mut tracks: VecDeque<Track<'_>> = VecDeque::new();
        let mut done_before = 0;
        loop {
            if self.cancel.is_cancelled() {
                transcript.cancelled = true;
                return Ok(transcript);
            }
            let mut n_open = tracks.iter().filter(|track| !track.is_done()).count();
            while n_open < n_windows {
                let next = || pending.next().map(|range| self.track(samples, range.clone()));
                let Some(mut track) = first.take().or_else(next) else { break };
                n_open += usize::from(track.find_sound());
                tracks.push_back(track);
            }
            let mut open: Vec<&mut Track<'_>> =
                tracks.iter_mut().filter(|track| !track.is_done()).collect();
            for (window, track) in open.iter().enumerate() {
                if encoded.take() != Some(track.window_start()) {
                    self.encode(&track.window(), window);
                }
            }
            let decoded = self.decode_with_fallback(&open, &context, &rules, options).await?;
            let is_empty = decoded.is_empty();
            for (window, (track, decoded)) in open.iter_mut().zip(decoded).enumerate() {
                if is_silent(&decoded.result, options) {
                    track.skip_window();
                } else {
                    let first = track.segments.len();
                    let mut cut = track.cut(&decoded.result, &special, self.model.tokenizer());
                    if options.word_timestamps {
                        let heard = Heard {
                            window,
                            start: context.start(),
                            language: written,
                            offset: track.offset(),
                            n_frames: track.size(),
                            last_speech: track.last_speech,
                        };
                        self.time_words(track, &mut cut, heard, options).await?;
                    }
                    track.take(cut);
                    let Decoded { temperature, has_failed, .. } = decoded;
                    context.add(&track.segments[first..], temperature, has_failed);
                }
                track.find_sound();
            }
            while let Some(track) = tracks.front_mut() {
                for mut segment in track.segments.drain(..) {
                    segment.id = transcript.segments.len();
                    on_progress(Progress::Segment(&segment));
                    transcript.text += &segment.text;
                    transcript.segments.push(segment);
                }
                if !track.is_done() {
                    break;
                }
                done_before = track.end();
                tracks.pop_front();
            }
            if is_empty {
                break;
            }
            let done: usize = tracks.iter().map(Track::done_samples).sum();
            on_progress(Progress::Position(done_before + done, samples.len()));
        }
        on_progress(Progress::Position(samples.len(), samples.len()));
        Ok(transcript)
    }

    /// Finds the words of what the window at hand of `track` was cut into, and moves on to the last of
    /// them.
    async fn time_words(
        &mut self,
        track: &mut Track<'_>,
        cut: &mut Cut,
        heard: Heard<'_>,
        options: &Options,
    ) -> Result<(), Error> {
        let started = Instant::now();
        self.model.add_words(&mut self.decoder, &mut cut.segments, heard, options).await?;
        self.timings.align += started.elapsed();
        let Heard { offset, n_frames, last_speech, .. } = heard;
        cut.follow_words(offset);
        if let Some(threshold) = options.hallucination_silence_threshold {
            let n_left = track.n_left();
            let window = hallucination::Window { offset, n_frames, n_left, last_speech };
            if let Some(advance) = hallucination::remove(&mut cut.segments, window, threshold) {
                cut.advance = advance;
            }
        }
        track.last_speech = speech_end(&cut.segments).unwrap_or(last_speech);
        Ok(())
    }

    /// Makes the decoder's buffers anew if they are too small.
    fn make_room(&mut self, n_windows: usize, n_sequences: usize) -> Result<(), Error> {
        let (has_windows, has_sequences) = (self.decoder.n_windows(), self.decoder.n_sequences());
        if n_windows > has_windows || n_sequences > has_sequences {
            let (n_windows, n_sequences) =
                (n_windows.max(has_windows), n_sequences.max(has_sequences));
            self.decoder = self.model.decoder_state(n_windows, n_sequences, self.kv_dtype)?;
        }
        Ok(())
    }

    fn track<'a>(&mut self, samples: &'a [f32], range: Range<usize>) -> Track<'a> {
        let started = Instant::now();
        let track = Track::new(samples, range, self.model.log_mel());
        self.timings.mel += started.elapsed();
        track
    }

    /// The language when it need not be detected.
    fn known_language(&self, options: &Options) -> Result<Option<Language>, Error> {
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
    fn start_sequence(&self, language: Language, options: &Options) -> Result<Vec<u32>, Error> {
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
    fn encode(&mut self, mel: &[f32], window: usize) {
        let started = Instant::now();
        self.model.encode(&mut self.encoder, mel);
        self.model.set_audio(&mut self.decoder, window, &self.encoder);
        self.timings.encode += started.elapsed();
        self.timings.windows += 1;
    }

    /// The most probable language of the first 30 s of `ranges`, its probability, and where the
    /// window begins that was encoded for it, if it is the first one of the first track.
    async fn detect_language(
        &mut self,
        samples: &[f32],
        ranges: &[Range<usize>],
        first: Option<&Track<'_>>,
    ) -> Result<(Language, f32, Option<usize>), Error> {
        // A short window says too little.
        let is_enough = |track: &&Track<'_>| ranges.len() == 1 || 2 * track.len() > WINDOW_SAMPLES;
        let first = first.filter(is_enough);
        let window = if let Some(track) = first {
            track.window()
        } else {
            let speech = ranges.iter().flat_map(|range| &samples[range.clone()]);
            let speech: Vec<f32> = speech.take(WINDOW_SAMPLES).copied().collect();
            self.track(&speech, 0..speech.len()).window()
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

    /// Decodes the windows at hand of `tracks`, those that fail again at the next temperature.
    async fn decode_with_fallback(
        &mut self,
        tracks: &[&mut Track<'_>],
        context: &Context,
        rules: &Rules,
        options: &Options,
    ) -> Result<Vec<Decoded>, Error> {
        let started = Instant::now();
        let prompts: Vec<Prompt> =
            tracks.iter().map(|track| context.prompt(&self.model, track.window_start())).collect();
        let mut best: Vec<Option<Decoded>> = tracks.iter().map(|_| None).collect();
        let mut open: Vec<usize> = (0..tracks.len()).collect();
        for (n, &temperature) in options.temperatures.iter().enumerate() {
            if open.is_empty() {
                break;
            }
            let request = |&window: &usize| {
                let Prompt { tokens, n_given } = &prompts[window];
                // Draws depend on the window, not on what is decoded beside it.
                let at = (tracks[window].window_start() * options.temperatures.len() + n) as u64;
                let seed = options.seed.wrapping_add(at);
                WindowRequest { window, prompt: tokens, n_given: *n_given, seed }
            };
            let requests: Vec<_> = open.iter().map(request).collect();
            let (state, scratch) = (&mut self.decoder, &mut self.scratch);
            let attempt = Attempt { rules, options, temperature };
            let results = self.model.decode_windows(state, scratch, &requests, attempt).await?;
            let mut failed = Vec::new();
            for (&window, result) in open.iter().zip(results) {
                let has_failed = needs_fallback(&result, options);
                let kept = best[window].take().map(|earlier| earlier.result);
                let result = match kept {
                    Some(kept) if has_failed && !is_better(&result, &kept, options) => kept,
                    _ => result,
                };
                best[window] = Some(Decoded { result, temperature, has_failed });
                if has_failed {
                    failed.push(window);
                }
            }
            self.timings.fallbacks += failed.len();
            open = failed;
        }
        self.timings.decode += started.elapsed();
        let mut decoded: Vec<Decoded> =
            best.into_iter().collect::<Option<_>>().ok_or_else(no_temperature)?;
        for Decoded { result, .. } in &mut decoded {
            if result.finish == Finish::Loop {
                result.cut_loop(self.model.tokenizer(), self.model.special());
            }
            self.timings.tokens += result.tokens.len();
        }
        Ok(decoded)
    }
}

/// What a window was decoded to.
#[derive(Debug)]
struct Decoded {
    /// The best attempt.
    result: WindowResult,
    /// Temperature of the last attempt.
    temperature: f32,
    /// Whether that one failed too.
    has_failed: bool,
}

/// Which of two failed attempts to keep: one that does not repeat itself, then the more probable
/// one. The reference keeps the last, which is the most random; this is faster-whisper's choice.
fn is_better(a: &WindowResult, b: &WindowResult, options: &Options) -> bool {
    (!repeats(a, options), a.avg_logprob) > (!repeats(b, options), b.avg_logprob)
}

fn repeats(result: &WindowResult, options: &Options) -> bool {
    let limit = options.compression_ratio_threshold;
    result.finish == Finish::Loop || limit.is_some_and(|limit| result.compression_ratio > limit)
}

fn needs_fallback(result: &WindowResult, options: &Options) -> bool {
    let unlikely = options.logprob_threshold.is_some_and(|limit| result.avg_logprob < limit);
    let silent =
        unlikely && options.no_speech_threshold.is_some_and(|limit| result.no_speech_prob > limit);
    (repeats(result, options) || unlikely) && !silent
}

/// Whether the window holds no speech: the model says so and is unsure of the text it gave.
fn is_silent(result: &WindowResult, options: &Options) -> bool {
    let sure = options.logprob_threshold.is_some_and(|limit| result.avg_logprob > limit);
    options.no_speech_threshold.is_some_and(|limit| result.no_speech_prob > limit) && !sure
}
