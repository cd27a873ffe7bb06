//! Transcription of a recording: chunks, windows of chunks, segments of windows.
//!
//! ```text
//! recording ──► chunks ──► windows of 30 s ──► segments
//!
//! advance:
//!     take the results of its windows: cut text into segments, request word times, move the chunk on
//!     open a chunk, if fewer than batch_size of them have a current window
//!     request the text of each current window
//!     emit the segments of the first chunk; of later ones once those before are done
//! ```
//!
//! Without a batch size there is one current window at a time; its prompt holds the text before it,
//! across chunks. With several in one batch, a prompt holds only the text of its own chunk.
//!
//! Source: openai/whisper `transcribe.py`; faster-whisper `BatchedInferencePipeline`.

mod detection;
mod times;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use stonechat_audio::Mel;
use web_time::Instant;

use crate::WINDOW_SAMPLES;
use crate::audio_source::{self, Samples};
use crate::chunk::{Chunk, WindowSegments, find_speech_end};
use crate::error::Error;
use crate::fallback::{DecodedWindow, is_silent};
use crate::languages::Language;
use crate::model::Model;
use crate::options::Options;
use crate::prompt::{History, Prompt, PromptBuilder, sot_sequence};
use crate::rules::Rules;
use crate::timings::Timings;
use crate::transcript::{Event, Segment, Transcript};
use crate::window_decoder::WindowDecoder;
use crate::window_request::{
    DecodeRequest, WindowAudio, WindowHandle, WindowOutput, WindowRequest, WindowTask,
};

/// Number of transcriptions so far.
static N_TRANSCRIPTIONS: AtomicU64 = AtomicU64::new(0);

/// Transcription of one recording, without a device: it feeds windows to a [`WindowDecoder`] and turns their results into
/// segments. Dropping it cancels its windows.
///
/// ```no_run
/// use stonechat_whisper::{Error, Options, Transcription, WindowDecoder};
///
/// async fn print(
///     mut transcriptions: Vec<Transcription<'_>>,
///     decoder: &mut WindowDecoder,
/// ) -> Result<(), Error> {
///     while transcriptions.iter().any(|run| !run.is_ended()) {
///         for run in &mut transcriptions {
///             run.advance(decoder)?;
///             while let Some(segment) = run.next_segment() {
///                 println!("{:7.2} {}", segment.start, segment.text.trim());
///             }
///         }
///         decoder.step().await?;
///     }
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct Transcription<'a> {
    /// Id of the recording, unique in the process.
    id: u64,
    model: Model,
    options: Arc<Options>,
    /// Samples to transcribe.
    audio: Samples<'a>,
    /// Whether the samples or their clips were cut into chunks for batched decoding.
    is_batched: bool,
    language: DetectedLanguage,
    rules: Arc<Rules>,
    /// Known with the language.
    prompts: Option<PromptBuilder>,
    /// First sample of the first window.
    first_window: usize,
    /// History that the next chunk starts with.
    history: History,
    /// Sample ranges of chunks that are not open yet.
    pending: VecDeque<Range<usize>>,
    /// Spectrogram of the first chunk, if it was computed beforehand.
    first_mel: Option<Mel>,
    /// The next chunks to open, whose spectrograms were computed for language detection or while the device encoded.
    prepared: VecDeque<Chunk>,
    /// Open chunks in order of time. Chunks that are done stay until those before them are done.
    chunks: VecDeque<OpenChunk>,
    /// Window that language detection left encoded, and its first sample.
    encoded: Option<(usize, WindowHandle)>,
    /// End of the last chunk whose segments were all collected, in samples.
    collected_end: usize,
    /// Final segments that were not returned yet.
    ready: VecDeque<Segment>,
    n_segments: usize,
    is_ended: bool,
    has_failed: bool,
    /// Language and segments that were reported.
    transcript: Transcript,
    /// Position of the last [`Event::Position`].
    reported_position: Option<usize>,
}

/// Language of a recording.
#[derive(Debug)]
enum DetectedLanguage {
    Unknown,
    /// Being detected; with the first sample of the window, if that can be used again.
    Requested(WindowHandle, Option<usize>),
    /// Known; with the probability, if it was detected.
    Known(Language, Option<f32>),
}

/// A chunk with the request for its current window.
#[derive(Debug)]
struct OpenChunk {
    chunk: Chunk,
    request: Option<Request>,
}

#[derive(Debug)]
enum Request {
    Text(WindowHandle),
    Times(WindowHandle, Box<DecodedSegments>),
}

impl Request {
    fn handle(&self) -> &WindowHandle {
        match self {
            Self::Text(handle) | Self::Times(handle, _) => handle,
        }
    }
}

/// Segments of a window that have no word times yet.
#[derive(Debug)]
struct DecodedSegments {
    new: WindowSegments,
    /// Text tokens of the segments.
    text: Vec<u32>,
    temperature: f32,
    has_failed: bool,
}

impl<'a> Transcription<'a> {
    /// Selects the clips of a recording, else its speech, else all of it; with a batch size cuts that into chunks.
    ///
    /// # Errors
    /// If an option does not fit the model or ranges of speech are not ascending.
    pub fn new(
        model: &Model,
        samples: impl Into<Samples<'a>>,
        options: &Options,
    ) -> Result<Self, Error> {
        options.validate()?;
        options.validate_for(model.config())?;
        let language = match model.special().known_language(options)? {
            Some(language) => DetectedLanguage::Known(language, None),
            None => DetectedLanguage::Unknown,
        };
        let (audio, chunks, is_batched) = audio_source::select(model, samples.into(), options)?;
        let pending = VecDeque::from(chunks);
        let duration = audio.duration();
        let mut run = Self {
            id: N_TRANSCRIPTIONS.fetch_add(1, Ordering::Relaxed),
            model: model.clone(),
            rules: Arc::new(Rules::new(model, options)),
            options: Arc::new(options.clone()),
            audio,
            is_batched,
            language,
            prompts: None,
            first_window: pending.front().map_or(0, |range| range.start),
            history: History::default(),
            pending,
            first_mel: None,
            prepared: VecDeque::new(),
            chunks: VecDeque::new(),
            encoded: None,
            collected_end: 0,
            ready: VecDeque::new(),
            n_segments: 0,
            is_ended: false,
            has_failed: false,
            transcript: Transcript { duration, ..Transcript::default() },
            reported_position: None,
        };
        if let DetectedLanguage::Known(language, _) = run.language {
            run.build_prompts(language)?;
        }
        Ok(run)
    }

    /// Computes the spectrogram of the first chunk, on the calling thread or by the device's kernel, so that
    /// [`advance`](Self::advance) need not do that between the steps of other recordings.
    pub fn prepare(&mut self) {
        if let Some(range) = self.pending.front().filter(|_| self.chunks.is_empty()) {
            let samples = &self.audio.samples[range.clone()];
            self.first_mel = Some(self.model.mel_on_this_thread(samples, WINDOW_SAMPLES));
        }
    }

    /// Runs a step of `decoder`. While the device encodes windows, the spectrograms of the next chunks of `runs` are computed, so
    /// that [`advance`](Self::advance) need not do that while the device waits.
    ///
    /// # Errors
    /// If the device fails: the windows are lost.
    pub async fn step<'r>(
        runs: impl IntoIterator<Item = &'r mut Self>,
        decoder: &mut WindowDecoder,
    ) -> Result<(), Error>
    where
        Self: 'r,
    {
        let n = decoder.state_options().encoder_batch_size;
        let prepare = |timings: &mut Timings| {
            runs.into_iter().try_for_each(|run| run.prepare_chunks(n, timings))
        };
        decoder.step_beside(prepare).await
    }

    /// Computes the spectrograms of the next `n` chunks.
    pub(crate) fn prepare_chunks(&mut self, n: usize, timings: &mut Timings) -> Result<(), Error> {
        while self.prepared.len() < n
            && let Some(range) = self.pending.pop_front()
        {
            let chunk = self.chunk(range, timings)?;
            self.prepared.push_back(chunk);
        }
        Ok(())
    }

    /// Options of the recording.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Most windows at a time.
    #[must_use]
    pub fn max_windows(&self) -> usize {
        self.options.n_windows().min(self.pending.len().max(1))
    }

    /// Language of the recording, once it is given or detected.
    #[must_use]
    pub fn language(&self) -> Option<Language> {
        match self.language {
            DetectedLanguage::Known(language, _) => Some(language),
            _ => None,
        }
    }

    /// Samples done and samples in total.
    #[must_use]
    pub fn position(&self) -> (usize, usize) {
        let n_samples = self.audio.n_recording_samples();
        if self.is_ended && !self.is_cancelled() {
            return (n_samples, n_samples);
        }
        let open: usize = self.chunks.iter().map(|open| open.chunk.done_samples()).sum();
        (self.audio.recording_end(self.collected_end + open), n_samples)
    }

    /// Length of the recording in seconds.
    #[must_use]
    pub fn duration(&self) -> f64 {
        self.transcript.duration
    }

    /// Whether there are no further segments than those that [`next_segment`](Self::next_segment) returns.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Whether it was cancelled. The segments end before the first window that was not finished.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.transcript.cancelled
    }

    /// Takes the next final segment, if there is one.
    pub fn next_segment(&mut self) -> Option<Segment> {
        self.ready.pop_front()
    }

    /// Cancels its windows and ends it.
    pub fn cancel(&mut self) {
        if !self.is_ended {
            (self.is_ended, self.transcript.cancelled) = (true, true);
            self.encoded = None;
            self.chunks.iter_mut().for_each(|open| open.request = None);
            if let DetectedLanguage::Requested(..) = self.language {
                self.language = DetectedLanguage::Unknown;
            }
        }
    }

    /// Takes the results of its windows and requests the next ones. To be called between the steps of `decoder`, whose
    /// model is that of this transcription.
    ///
    /// # Errors
    /// If the options do not fit the state of `decoder`, or voice activity detection fails.
    pub fn advance(&mut self, decoder: &mut WindowDecoder) -> Result<(), Error> {
        if self.is_ended {
            return Ok(());
        }
        decoder.check(&self.options)?;
        self.advance_language(decoder)?;
        if self.language().is_none() {
            return Ok(());
        }
        for index in 0..self.chunks.len() {
            self.take_result(index, decoder)?;
        }
        self.collect();
        self.open_chunks(decoder)?;
        let mut is_open = false;
        for index in 0..self.chunks.len() {
            let OpenChunk { chunk, request } = &self.chunks[index];
            is_open |= request.is_some() || !chunk.is_done();
            if request.is_none() && !chunk.is_done() {
                let request = self.request_text(index);
                let handle = decoder.add(request)?;
                self.chunks[index].request = Some(Request::Text(handle));
            }
        }
        // Chunks of silence have no window.
        self.collect();
        self.is_ended = !is_open;
        Ok(())
    }

    /// Reports the language, new segments and the position; appends the segments to the
    /// [transcript](Self::into_transcript).
    pub fn report(&mut self, on_event: &mut dyn FnMut(Event)) {
        let transcript = &mut self.transcript;
        if let DetectedLanguage::Known(language, probability) = self.language
            && transcript.language.is_empty()
        {
            language.code.clone_into(&mut transcript.language);
            if let Some(probability) = probability {
                on_event(Event::Language(language, probability));
            }
        }
        for segment in self.ready.drain(..) {
            transcript.text += &segment.text;
            transcript.segments.push(segment.clone());
            on_event(Event::Segment(segment));
        }
        let (done, total) = self.position();
        if self.reported_position != Some(done) {
            self.reported_position = Some(done);
            on_event(Event::Position(done, total));
        }
    }

    /// Transcript of the segments that were [reported](Self::report).
    #[must_use]
    pub fn into_transcript(self) -> Transcript {
        Transcript { has_failed: self.has_failed, ..self.transcript }
    }

    /// Detects the language, if it is not given.
    fn advance_language(&mut self, decoder: &mut WindowDecoder) -> Result<(), Error> {
        match &self.language {
            DetectedLanguage::Known(..) => return Ok(()),
            DetectedLanguage::Unknown => {
                let (mel, start) = self.detection_window(decoder)?;
                let request = WindowRequest {
                    owner: self.id,
                    audio: WindowAudio::Mel(mel),
                    task: WindowTask::DetectLanguage(self.options.languages.clone()),
                    keep_audio: start.is_some(),
                };
                self.language = DetectedLanguage::Requested(decoder.add(request)?, start);
                return Ok(());
            }
            DetectedLanguage::Requested(handle, _) => {
                let Some(WindowOutput::Language(language, probability)) = decoder.finished(handle)
                else {
                    return Ok(());
                };
                tracing::info!(language = language.code, probability, "language detected");
                self.build_prompts(language)?;
                let known = DetectedLanguage::Known(language, Some(probability));
                if let DetectedLanguage::Requested(handle, Some(start)) =
                    std::mem::replace(&mut self.language, known)
                {
                    self.encoded = Some((start, handle));
                }
            }
        }
        Ok(())
    }

    fn build_prompts(&mut self, language: Language) -> Result<(), Error> {
        let sot_sequence = sot_sequence(&self.model, language, &self.options)?;
        let prompts =
            PromptBuilder::new(&self.model, sot_sequence, self.first_window, &self.options);
        self.history = prompts.initial_history();
        self.prompts = Some(prompts);
        Ok(())
    }

    /// Computes the spectrogram of the sample range `range` and makes it a chunk.
    fn chunk(&mut self, range: Range<usize>, timings: &mut Timings) -> Result<Chunk, Error> {
        let started = Instant::now();
        let samples = &self.audio.samples[range.clone()];
        // Audio that was not cut gets the same result as without a batch size.
        let vad = if self.is_batched { Some(self.model.vad()?) } else { None };
        let speech_end = || find_speech_end(samples, vad?, &self.options.vad_options);
        let (mel, speech_end) = match self.first_mel.take() {
            Some(mel) => (mel, speech_end()),
            None => self.model.mel_beside(samples, WINDOW_SAMPLES, speech_end),
        };
        let mut chunk = Chunk::new(range, mel, self.is_batched)
            .with_windows_cut(self.options.without_timestamps, &self.audio.samples);
        (chunk.speech_end, chunk.is_speech) = (speech_end, self.audio.map.is_some());
        timings.mel += started.elapsed();
        Ok(chunk)
    }

    /// Opens pending chunks with speech while windows of the batch are free, up to the encoder's batch size. All but one of
    /// a batch may wait for windows, so that batches are full.
    fn open_chunks(&mut self, decoder: &mut WindowDecoder) -> Result<(), Error> {
        let encoder_batch_size = decoder.state_options().encoder_batch_size;
        let n_open = self.chunks.iter().filter(|open| !open.chunk.is_done()).count();
        let max_open = self.options.n_windows() + encoder_batch_size - 1;
        let mut n = max_open.saturating_sub(n_open).min(encoder_batch_size);
        while n > 0 {
            self.prepare_chunks(1, &mut decoder.timings)?;
            let Some(mut chunk) = self.prepared.pop_front() else { break };
            chunk.history = self.history.clone();
            n -= usize::from(chunk.skip_silence(&self.audio.samples));
            self.chunks.push_back(OpenChunk { chunk, request: None });
        }
        Ok(())
    }

    /// Request for the text of the current window of chunk `index`.
    fn request_text(&mut self, index: usize) -> WindowRequest {
        let chunk = &self.chunks[index].chunk;
        let start = chunk.window_start();
        let audio = match self.encoded.take() {
            Some((encoded, handle)) if encoded == start => WindowAudio::Kept(handle),
            _ => WindowAudio::Mel(chunk.window_mel()),
        };
        let prompts = self.prompts.as_ref().expect("the language is known");
        let Prompt { tokens, n_prefix } = prompts.prompt(&self.model, &chunk.history, start);
        // The seed depends on the window and the attempt, not on the rest of the batch.
        let first_seed = (start * self.options.temperatures.len()) as u64;
        let request = DecodeRequest {
            prompt: tokens,
            n_prefix,
            min_end_timestamp: chunk.min_end_timestamp(self.model.special()),
            rules: Arc::clone(&self.rules),
            seed: self.options.seed.wrapping_add(first_seed),
            options: Arc::clone(&self.options),
            start: chunk.window_start_seconds(),
        };
        WindowRequest {
            owner: self.id,
            audio,
            task: WindowTask::Decode(request),
            keep_audio: self.options.word_timestamps || chunk.seeks_last_word(&self.options),
        }
    }

    /// Takes the result of the window of chunk `index`, if there is one.
    fn take_result(&mut self, index: usize, decoder: &mut WindowDecoder) -> Result<(), Error> {
        let OpenChunk { chunk, request } = &mut self.chunks[index];
        let Some(handle) = request.as_ref().map(Request::handle) else { return Ok(()) };
        let Some(output) = decoder.finished(handle) else { return Ok(()) };
        let has_alignment = decoder.state_options().has_alignment;
        let is_last_word_sought = has_alignment && chunk.seeks_last_word(&self.options);
        match (request.take(), output) {
            (Some(Request::Text(handle)), WindowOutput::Text(decoded)) => {
                if is_silent(&decoded.result, &self.options) {
                    chunk.skip_window();
                } else {
                    let (special, tokenizer) = (self.model.special(), self.model.tokenizer());
                    let new = chunk.split_segments(&decoded.result, special, tokenizer);
                    let (vad, threshold) = (self.model.vad()?, self.options.vad_options.threshold);
                    let is_speech = |samples: &[f32]| {
                        vad.probabilities(samples).iter().map(|&p| p >= threshold).collect()
                    };
                    let new = chunk.split_at_missed_speech(new, &self.audio.samples, is_speech);
                    let Some(new) = new else { return Ok(()) };
                    let DecodedWindow { temperature, has_failed, .. } = decoded;
                    let tokens = new.segments.iter().flat_map(|segment| &segment.tokens);
                    let text = tokens.copied().filter(|&token| token < special.eot).collect();
                    let decoded = DecodedSegments { new, text, temperature, has_failed };
                    if self.options.word_timestamps || is_last_word_sought {
                        return self.request_times(index, handle, decoded, decoder);
                    }
                    self.push(index, decoded);
                }
            }
            (Some(Request::Times(_, mut decoded)), WindowOutput::Times(times)) => {
                if self.options.word_timestamps {
                    self.place_words(index, &mut decoded, &times);
                } else {
                    self.seek_last_word(index, &mut decoded, &times)?;
                }
                self.push(index, *decoded);
            }
            (request, output) => unreachable!("{output:?} of {request:?}"),
        }
        self.chunks[index].chunk.skip_silence(&self.audio.samples);
        Ok(())
    }

    /// Appends the segments of the current window of chunk `index`, which moves to its next window.
    fn push(&mut self, index: usize, decoded: DecodedSegments) {
        let chunk = &mut self.chunks[index].chunk;
        let DecodedSegments { new, temperature, has_failed, .. } = decoded;
        let first = chunk.segments.len();
        chunk.push_segments(new);
        self.has_failed |= has_failed;
        let prompts = self.prompts.as_ref().expect("the language is known");
        let segments = &chunk.segments[first..];
        prompts.extend(&mut chunk.history, segments, temperature, has_failed);
    }

    /// Moves the segments of the first chunk to `ready`, and those of the next once it is done.
    fn collect(&mut self) {
        while let Some(OpenChunk { chunk, request }) = self.chunks.front_mut() {
            for mut segment in chunk.segments.drain(..) {
                segment.id = self.n_segments;
                self.n_segments += 1;
                self.audio.restore_times(&mut segment);
                self.ready.push_back(segment);
            }
            if request.is_some() || !chunk.is_done() {
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
