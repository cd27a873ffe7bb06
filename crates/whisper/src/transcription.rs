//! The loop over a recording: chunks, windows of chunks, segments of windows.
//!
//! ```text
//! recording ──► chunks ──► windows of 30 s ──► segments
//!
//! until every chunk is done:
//!     open chunks until batch_size of them have a current window
//!     encode the current window of each
//!     decode all of them in one batch, with temperature fallback
//!     cut each result into segments, align words, advance the chunk
//!     emit the segments of the first chunk; of later ones once those before are done
//! ```
//!
//! Without a batch size there is one current window at a time; its prompt holds the text before it,
//! across chunks. Of several in one batch, each prompt holds only the text of its own chunk.
//!
//! Source: openai/whisper `transcribe.py`; faster-whisper `BatchedInferencePipeline`.

use std::collections::VecDeque;
use std::ops::Range;

use stonechat_audio::Vad;
use stonechat_nn::Backend;
use web_time::Instant;

use crate::align::WindowContext;
use crate::audio_source::AudioSource;
use crate::chunk::{Chunk, WindowSegments};
use crate::error::Error;
use crate::fallback::{DecodedWindow, is_silent};
use crate::hallucination;
use crate::languages::Language;
use crate::options::{Options, Task};
use crate::prompt::{History, PromptBuilder};
use crate::rules::Rules;
use crate::transcriber::Transcriber;
use crate::transcript::{Progress, Segment, Transcript};
use crate::words::speech_end;

/// A running transcription: an iterator over segments, each returned as soon as it is final. An
/// error is the last item.
///
/// ```no_run
/// # fn print(
/// #     transcriber: &mut stonechat_whisper::Transcriber<stonechat_nn::Cpu>,
/// #     samples: &[f32],
/// # ) -> Result<(), stonechat_whisper::Error> {
/// let options = stonechat_whisper::Options::default();
/// for segment in transcriber.segments(samples, &options)? {
///     let segment = segment?;
///     println!("{:7.2} {}", segment.start, segment.text.trim());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Transcription<'a, B: Backend> {
    transcriber: &'a mut Transcriber<B>,
    options: &'a Options,
    audio: AudioSource<'a>,
    language: Language,
    /// Probability of the language, if it was detected.
    language_probability: Option<f32>,
    rules: Rules,
    prompts: PromptBuilder,
    /// History that the next chunk starts with.
    history: History,
    /// Finds the end of speech in batched chunks; `None` without any.
    vad: Option<Vad>,
    /// Sample ranges of chunks that are not open yet.
    pending: VecDeque<Range<usize>>,
    /// The first chunk, if its spectrogram was computed for language detection.
    first_chunk: Option<Chunk>,
    /// Open chunks in order of time. Chunks that are done stay until those before them are done.
    chunks: VecDeque<Chunk>,
    /// First sample of the window that language detection left encoded in window 0.
    encoded_start: Option<usize>,
    /// End of the last chunk whose segments were all collected, in samples.
    collected_end: usize,
    /// Final segments that were not returned yet.
    ready: VecDeque<Segment>,
    n_segments: usize,
    ended: bool,
    cancelled: bool,
    has_failed: bool,
}

impl<'a, B: Backend> Transcription<'a, B> {
    /// Allocates state and detects the language; `chunks` are sample ranges of `audio`.
    pub(crate) async fn new(
        transcriber: &'a mut Transcriber<B>,
        audio: AudioSource<'a>,
        chunks: Vec<Range<usize>>,
        options: &'a Options,
    ) -> Result<Self, Error> {
        let n_windows = options.n_windows().min(chunks.len().max(1));
        transcriber.prepare(options, n_windows)?;
        let samples = &audio.samples[..];
        // Audio that was not cut gets the same result as without a batch size.
        let vad = audio.is_batched.then(Vad::new).transpose()?;
        let mut pending = VecDeque::from(chunks);
        let first_window = pending.front().map_or(0, |range| range.start);
        let (mut first_chunk, mut encoded_start, mut language_probability) = (None, None, None);
        let language = match transcriber.known_language(options)? {
            Some(language) => language,
            None => {
                let range = pending.front().cloned();
                first_chunk =
                    range.map(|range| transcriber.chunk(samples, range, audio.is_batched));
                let ranges = pending.make_contiguous();
                let (language, probability, encoded) =
                    transcriber.detect_language(samples, ranges, first_chunk.as_ref()).await?;
                tracing::info!(language = language.code, probability, "language detected");
                (language_probability, encoded_start) = (Some(probability), encoded);
                if first_chunk.is_some() {
                    pending.pop_front();
                }
                language
            }
        };
        let model = transcriber.model();
        let rules = Rules::new(*model.special(), model.tokenizer(), options);
        let sot_sequence = transcriber.sot_sequence(language, options)?;
        let prompts = PromptBuilder::new(model, sot_sequence, first_window, options);
        Ok(Self {
            transcriber,
            options,
            audio,
            language,
            language_probability,
            rules,
            history: prompts.initial_history(),
            prompts,
            vad,
            pending,
            first_chunk,
            chunks: VecDeque::new(),
            encoded_start,
            collected_end: 0,
            ready: VecDeque::new(),
            n_segments: 0,
            ended: false,
            cancelled: false,
            has_failed: false,
        })
    }

    /// Language of the recording, given or detected.
    #[must_use]
    pub fn language(&self) -> Language {
        self.language
    }

    /// Samples done and samples in total.
    #[must_use]
    pub fn position(&self) -> (usize, usize) {
        let n_samples = self.audio.n_recording_samples();
        if self.ended && !self.cancelled {
            return (n_samples, n_samples);
        }
        let open: usize = self.chunks.iter().map(Chunk::done_samples).sum();
        (self.audio.recording_end(self.collected_end + open), n_samples)
    }

    /// Whether the transcriber's token cancelled this run. The segments then end before the first
    /// window that was not finished.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled
    }

    /// Whether a window failed at every temperature.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Returns the next segment without blocking; `None` at the end.
    ///
    /// # Errors
    /// If the device fails.
    pub async fn next_async(&mut self) -> Result<Option<Segment>, Error> {
        while self.ready.is_empty() && self.advance().await? {}
        Ok(self.ready.pop_front())
    }

    /// Runs to the end and reports every event.
    pub(crate) async fn run(
        mut self,
        on_progress: &mut (dyn FnMut(Progress<'_>) + Send),
    ) -> Result<Transcript, Error> {
        if let Some(probability) = self.language_probability {
            on_progress(Progress::Language(self.language, probability));
        }
        let mut transcript = Transcript {
            text: String::new(),
            segments: Vec::new(),
            language: self.language.code.to_owned(),
            cancelled: false,
        };
        while self.advance().await? {
            for segment in self.ready.drain(..) {
                on_progress(Progress::Segment(&segment));
                transcript.text += &segment.text;
                transcript.segments.push(segment);
            }
            let (done, total) = self.position();
            on_progress(Progress::Position(done, total));
        }
        transcript.cancelled = self.cancelled;
        Ok(transcript)
    }

    /// Decodes the current windows and collects final segments; false once the run has ended.
    async fn advance(&mut self) -> Result<bool, Error> {
        if self.ended {
            return Ok(false);
        }
        let outcome = self.decode_current_windows().await;
        // An error ends the run.
        self.ended = !matches!(outcome, Ok(StepOutcome::Decoded));
        match outcome? {
            StepOutcome::Decoded => self.collect(),
            StepOutcome::Done => {}
            StepOutcome::Cancelled => self.cancelled = true,
        }
        Ok(true)
    }

    async fn decode_current_windows(&mut self) -> Result<StepOutcome, Error> {
        if self.transcriber.is_cancelled() {
            return Ok(StepOutcome::Cancelled);
        }
        self.open_chunks();
        let mut open: Vec<&mut Chunk> =
            self.chunks.iter_mut().filter(|chunk| !chunk.is_done()).collect();
        if open.is_empty() {
            return Ok(StepOutcome::Done);
        }
        let (transcriber, options) = (&mut *self.transcriber, self.options);
        for (window, chunk) in open.iter().enumerate() {
            if self.encoded_start.take() != Some(chunk.window_start()) {
                transcriber.encode(&chunk.window_mel(), window);
            }
        }
        let decoded =
            transcriber.decode_with_fallback(&open, &self.prompts, &self.rules, options).await?;
        let Some(decoded) = decoded else { return Ok(StepOutcome::Cancelled) };
        let is_translated = options.task == Task::Translate;
        let text_language = if is_translated { "en" } else { self.language.code };
        for (window, (chunk, decoded)) in open.iter_mut().zip(decoded).enumerate() {
            if is_silent(&decoded.result, options) {
                chunk.skip_window();
            } else {
                let first = chunk.segments.len();
                let model = transcriber.model();
                let mut new =
                    chunk.split_segments(&decoded.result, model.special(), model.tokenizer());
                if options.word_timestamps {
                    let context = WindowContext {
                        window,
                        sot_sequence: self.prompts.sot_sequence(),
                        language: text_language,
                        offset: chunk.window_start_seconds(),
                        n_frames: chunk.window_frames(),
                        last_speech: chunk.last_speech,
                    };
                    transcriber.align_words(chunk, &mut new, context, options).await?;
                }
                chunk.push_segments(new);
                let DecodedWindow { temperature, has_failed, .. } = decoded;
                self.has_failed |= has_failed;
                let segments = &chunk.segments[first..];
                self.prompts.extend(&mut chunk.history, segments, temperature, has_failed);
            }
            chunk.skip_silence(&self.audio.samples);
        }
        Ok(StepOutcome::Decoded)
    }

    /// Opens pending chunks until there is a current window for every window of the batch.
    fn open_chunks(&mut self) {
        let n_windows = self.options.n_windows();
        let samples = &self.audio.samples[..];
        let (n_old, is_batched) = (self.chunks.len(), self.audio.is_batched);
        let mut n_open = self.chunks.iter().filter(|chunk| !chunk.is_done()).count();
        while n_open < n_windows {
            let open = |range| self.transcriber.chunk(samples, range, is_batched);
            let next = || self.pending.pop_front().map(open);
            let Some(mut chunk) = self.first_chunk.take().or_else(next) else { break };
            chunk.history = self.history.clone();
            n_open += usize::from(chunk.skip_silence(samples));
            self.chunks.push_back(chunk);
        }
        if let Some(vad) = &self.vad {
            let mut new: Vec<_> = self.chunks.range_mut(n_old..).collect();
            let options = &self.options.vad_options;
            let backend = self.transcriber.model().backend();
            backend.for_each(&mut new, |chunk| chunk.find_speech_end(samples, vad, options));
        }
    }

    /// Moves the segments of the first chunk to `ready`, and those of the next once it is done.
    fn collect(&mut self) {
        while let Some(chunk) = self.chunks.front_mut() {
            for mut segment in chunk.segments.drain(..) {
                segment.id = self.n_segments;
                self.n_segments += 1;
                self.audio.restore_times(&mut segment);
                self.ready.push_back(segment);
            }
            if !chunk.is_done() {
                break;
            }
            self.collected_end = chunk.end();
            if self.options.n_windows() == 1 {
                self.history = std::mem::take(&mut chunk.history);
            }
            self.chunks.pop_front();
        }
    }
}

impl<B: Backend> Iterator for Transcription<'_, B> {
    type Item = Result<Segment, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        pollster::block_on(self.next_async()).transpose()
    }
}

/// Result of one step of the loop.
#[derive(Debug)]
enum StepOutcome {
    Decoded,
    /// No chunk has a window left.
    Done,
    Cancelled,
}

impl<B: Backend> Transcriber<B> {
    /// Aligns the words of the current window of `chunk`, removes hallucinated segments, and moves
    /// the advance to the end of the last word.
    async fn align_words(
        &mut self,
        chunk: &mut Chunk,
        new: &mut WindowSegments,
        context: WindowContext<'_>,
        options: &Options,
    ) -> Result<(), Error> {
        let started = Instant::now();
        self.model.add_words(&mut self.decoder, &mut new.segments, context, options).await?;
        self.timings.align += started.elapsed();
        let WindowContext { offset, n_frames, last_speech, .. } = context;
        new.advance_to_last_word(offset);
        if let Some(threshold) = options.hallucination_silence_threshold {
            let n_left = chunk.remaining_frames();
            let window = hallucination::Window { offset, n_frames, n_left, last_speech };
            if let Some(advance) = hallucination::remove(&mut new.segments, window, threshold) {
                new.advance = advance;
            }
        }
        chunk.last_speech = speech_end(&new.segments).unwrap_or(last_speech);
        Ok(())
    }
}
