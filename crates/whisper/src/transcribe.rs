//! Long audio: seek by timestamps, prompts from earlier text, temperature fallback.
//!
//! Source: openai/whisper `transcribe.py`.

use std::time::Duration;

use stonechat_audio::Mel;
use stonechat_nn::sample::Rng;
use stonechat_nn::{Backend, KvDType};
use web_time::Instant;

use crate::options::no_temperature;
use crate::rules::Rules;
use crate::window::{Scratch, WindowRequest};
use crate::{
    Batch, DecoderState, EncoderState, Error, FRAMES_PER_POSITION, HOP_LENGTH, Language, Model,
    Options, SAMPLE_RATE, TIMESTAMP_SECONDS, WINDOW_FRAMES, WINDOW_SAMPLES, WindowResult,
};

/// A stretch of text with its times; the fields are openai/whisper's.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
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
    /// Temperature that the window was decoded at.
    pub temperature: f32,
    /// Mean log-probability of the window's tokens.
    pub avg_logprob: f64,
    /// Compression ratio of the window's text.
    pub compression_ratio: f64,
    /// Probability that the window holds no speech.
    pub no_speech_prob: f64,
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
    /// Windows encoded.
    pub windows: usize,
    /// Windows decoded again at a higher temperature.
    pub fallbacks: usize,
    /// Tokens kept.
    pub tokens: usize,
}

/// A model with the buffers to run it on one recording at a time.
#[derive(Debug)]
pub struct Transcriber<B: Backend> {
    model: Model<B>,
    encoder: EncoderState<B>,
    decoder: DecoderState<B>,
    scratch: Scratch,
    window: Vec<f32>,
    timings: Timings,
}

impl<B: Backend> Transcriber<B> {
    /// Makes the buffers; `kv_dtype` is the type of cached keys and values.
    ///
    /// # Errors
    /// If the device is full.
    pub fn new(model: Model<B>, kv_dtype: KvDType) -> Result<Self, Error> {
        let encoder = model.encoder_state(kv_dtype)?;
        let decoder = model.decoder_state(Options::MAX_BEST_OF, kv_dtype)?;
        let window = vec![0.0; WINDOW_FRAMES * model.config().n_mels];
        Ok(Self {
            model,
            encoder,
            decoder,
            scratch: Scratch::default(),
            window,
            timings: Timings::default(),
        })
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

    /// Transcribes 16 kHz mono samples.
    ///
    /// # Errors
    /// If an option does not fit the model or the device fails.
    pub async fn transcribe_async(
        &mut self,
        samples: &[f32],
        options: &Options,
        on_progress: &mut (dyn FnMut(Progress<'_>) + Send),
    ) -> Result<Transcript, Error> {
        options.validate()?;
        let started = Instant::now();
        let mel = self.model.log_mel().compute(samples, WINDOW_SAMPLES);
        self.timings.mel += started.elapsed();
        let n_frames = mel.n_frames - WINDOW_FRAMES;

        let mut encoded = None;
        let language = match self.known_language(options)? {
            Some(language) => language,
            None => {
                self.encode(&mel, 0, n_frames.min(WINDOW_FRAMES));
                encoded = Some(0);
                let (language, probability) = self.detect_language().await?;
                on_progress(Progress::Language(language, probability));
                language
            }
        };

        let special = *self.model.special();
        let rules = Rules::new(special, self.model.tokenizer(), options);
        let mut run = Run {
            start: self.start_sequence(language, options)?,
            history: Vec::new(),
            prompt_from: 0,
            segments: Vec::new(),
            rng: Rng::new(options.seed),
            duration: samples.len() as f64 / SAMPLE_RATE as f64,
            temperature: 0.0,
        };
        if let Some(prompt) = &options.initial_prompt {
            run.history = self.model.tokenizer().encode(&format!(" {}", prompt.trim()));
        }
        let mut seek = 0;
        while seek < n_frames {
            let size = WINDOW_FRAMES.min(n_frames - seek);
            if is_digital_silence(samples, seek, size) {
                seek += size;
                let done = (seek * HOP_LENGTH).min(samples.len());
                on_progress(Progress::Position(done, samples.len()));
                continue;
            }
            if encoded.take() != Some(seek) {
                self.encode(&mel, seek, size);
            }
            let result = self.decode_with_fallback(&mut run, &rules, options).await?;
            if is_silent(&result, options) {
                seek += size;
            } else {
                let first = run.segments.len();
                seek += self.append_segments(&mut run, &result, seek, size);
                for segment in &run.segments[first..] {
                    on_progress(Progress::Segment(segment));
                }
                if !options.condition_on_previous_text || run.temperature > 0.5 {
                    run.prompt_from = run.history.len();
                }
            }
            on_progress(Progress::Position((seek * HOP_LENGTH).min(samples.len()), samples.len()));
        }
        let text = run.segments.iter().map(|s| s.text.as_str()).collect();
        Ok(Transcript { text, segments: run.segments, language: language.code.to_owned() })
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

    /// Encodes the frames `seek .. seek + size`, padded with silence to a window.
    fn encode(&mut self, mel: &Mel, seek: usize, size: usize) {
        let started = Instant::now();
        let frames = &mel.data[seek * mel.n_mels..(seek + size) * mel.n_mels];
        self.window[..frames.len()].copy_from_slice(frames);
        self.window[frames.len()..].fill(0.0);
        self.model.encode(&mut self.encoder, &self.window);
        self.model.set_audio(&mut self.decoder, &self.encoder);
        self.timings.encode += started.elapsed();
        self.timings.windows += 1;
    }

    /// The most probable language of the encoded window.
    async fn detect_language(&mut self) -> Result<(Language, f32), Error> {
        let special = self.model.special();
        let batch = Batch { tokens: &[special.sot], sequences: &[0], outputs: &[0] };
        self.decoder.clear();
        self.model.decode(&mut self.decoder, batch)?;
        let mut logits = vec![0.0; self.model.config().vocab_size];
        self.model.read_logits(&self.decoder, 0, &mut logits).await?;
        let first = special.sot as usize + 1;
        let logits = &logits[first..first + special.languages().len()];
        let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap_or(0);
        let total: f32 = logits.iter().map(|l| (l - logits[best]).exp()).sum();
        Ok((special.languages()[best], 1.0 / total))
    }

    async fn decode_with_fallback(
        &mut self,
        run: &mut Run,
        rules: &Rules,
        options: &Options,
    ) -> Result<WindowResult, Error> {
        let started = Instant::now();
        let prompt = run.prompt(&self.model);
        let mut best: Option<WindowResult> = None;
        for &temperature in &options.temperatures {
            let n_candidates = if temperature > 0.0 { options.best_of } else { 1 };
            let request = WindowRequest { prompt: &prompt, rules, temperature, n_candidates };
            let (state, scratch) = (&mut self.decoder, &mut self.scratch);
            let result = self.model.decode_window(state, scratch, request, &mut run.rng).await?;
            run.temperature = temperature;
            let failed = needs_fallback(&result, options);
            if !failed || best.as_ref().is_none_or(|best| is_better(&result, best, options)) {
                best = Some(result);
            }
            if !failed {
                break;
            }
            self.timings.fallbacks += 1;
        }
        self.timings.decode += started.elapsed();
        let best = best.ok_or_else(no_temperature)?;
        self.timings.tokens += best.tokens.len();
        Ok(best)
    }

    /// Cuts a window's tokens into segments at its timestamp pairs; returns by how many frames to
    /// move on.
    fn append_segments(
        &self,
        run: &mut Run,
        result: &WindowResult,
        seek: usize,
        size: usize,
    ) -> usize {
        let special = self.model.special();
        let tokens = &result.tokens;
        let is_timestamp = |i: usize| special.is_timestamp(tokens[i]);
        let steps = |token: u32| token.saturating_sub(special.timestamp_begin) as usize;
        let offset = seconds(seek);
        let n = tokens.len();
        let single_ending = n >= 2 && !is_timestamp(n - 2) && is_timestamp(n - 1);
        let mut cuts: Vec<usize> =
            (1..n).filter(|&i| is_timestamp(i - 1) && is_timestamp(i)).collect();
        if cuts.is_empty() {
            let last = (0..n).rev().find(|&i| is_timestamp(i)).map(|i| steps(tokens[i]));
            let length = match last {
                Some(last) if last > 0 => last as f64 * TIMESTAMP_SECONDS,
                _ => seconds(size),
            };
            self.push_segment(run, result, tokens, (offset, offset + length), seek);
            return size;
        }
        if single_ending {
            cuts.push(n);
        }
        let mut from = 0;
        for &cut in &cuts {
            let piece = &tokens[from..cut];
            let time = |token: u32| offset + steps(token) as f64 * TIMESTAMP_SECONDS;
            let times = (time(piece[0]), time(piece[piece.len() - 1]));
            self.push_segment(run, result, piece, times, seek);
            from = cut;
        }
        if single_ending {
            // Nothing was said after the last stamp.
            size
        } else {
            // The rules make the last stamp positive; an advance of zero would never end.
            steps(tokens[from - 1]).max(1) * FRAMES_PER_POSITION
        }
    }

    fn push_segment(
        &self,
        run: &mut Run,
        result: &WindowResult,
        tokens: &[u32],
        (start, end): (f64, f64),
        seek: usize,
    ) {
        let text = self.model.tokenizer().decode(tokens);
        if start >= end || text.trim().is_empty() {
            return;
        }
        run.history.extend_from_slice(tokens);
        run.segments.push(Segment {
            id: run.segments.len(),
            seek,
            start: hundredths(start.min(run.duration)),
            end: hundredths(end.min(run.duration)),
            text,
            tokens: tokens.to_vec(),
            temperature: result.temperature,
            avg_logprob: result.avg_logprob,
            compression_ratio: result.compression_ratio,
            no_speech_prob: result.no_speech_prob,
        });
    }
}

/// What one recording accumulates.
#[derive(Debug)]
struct Run {
    start: Vec<u32>,
    /// Tokens of the initial prompt and all segments.
    history: Vec<u32>,
    /// Where in `history` the prompt of the next window may begin.
    prompt_from: usize,
    segments: Vec<Segment>,
    rng: Rng,
    /// Seconds of the recording: stamps in the padding of the last window lie beyond it.
    duration: f64,
    /// The last temperature that the current window needed.
    temperature: f32,
}

impl Run {
    fn prompt<B: Backend>(&self, model: &Model<B>) -> Vec<u32> {
        let earlier = &self.history[self.prompt_from..];
        let earlier = &earlier[earlier.len().saturating_sub(model.config().max_prompt_tokens())..];
        let mut prompt = Vec::with_capacity(1 + earlier.len() + self.start.len());
        if !earlier.is_empty() {
            prompt.push(model.special().start_of_prev);
            prompt.extend_from_slice(earlier);
        }
        prompt.extend_from_slice(&self.start);
        prompt
    }
}

/// Which of two failed attempts to keep: one that does not repeat itself, then the more probable
/// one. The reference keeps the last, which is the most random; this is faster-whisper's choice.
fn is_better(a: &WindowResult, b: &WindowResult, options: &Options) -> bool {
    let varied = |result: &WindowResult| {
        options.compression_ratio_threshold.is_none_or(|limit| result.compression_ratio <= limit)
    };
    (varied(a), a.avg_logprob) > (varied(b), b.avg_logprob)
}

fn needs_fallback(result: &WindowResult, options: &Options) -> bool {
    let repeats =
        options.compression_ratio_threshold.is_some_and(|limit| result.compression_ratio > limit);
    let unlikely = options.logprob_threshold.is_some_and(|limit| result.avg_logprob < limit);
    let silent =
        unlikely && options.no_speech_threshold.is_some_and(|limit| result.no_speech_prob > limit);
    (repeats || unlikely) && !silent
}

/// Whether the window holds no speech: the model says so and is unsure of the text it gave.
fn is_silent(result: &WindowResult, options: &Options) -> bool {
    let sure = options.logprob_threshold.is_some_and(|limit| result.avg_logprob > limit);
    options.no_speech_threshold.is_some_and(|limit| result.no_speech_prob > limit) && !sure
}

/// Whether the window holds nothing above the last bit of 16-bit audio. The reference hears "you"
/// in such a window; there is nothing to hear.
fn is_digital_silence(samples: &[f32], seek: usize, size: usize) -> bool {
    const LAST_BIT: f32 = 1.5 / 32768.0;
    let end = ((seek + size) * HOP_LENGTH).min(samples.len());
    samples[(seek * HOP_LENGTH).min(end)..end].iter().all(|s| s.abs() <= LAST_BIT)
}

fn seconds(frames: usize) -> f64 {
    (frames * HOP_LENGTH) as f64 / SAMPLE_RATE as f64
}

/// Times are multiples of 10 ms; this removes the rounding error of their sums.
fn hundredths(seconds: f64) -> f64 {
    (seconds * 100.0).round() / 100.0
}
