//! One recording on its way to text.
//!
//! A recording is one or several tracks. One after the other, each window can be told what was said
//! before it; of several side by side, each knows of its own windows.
//!
//! Source: openai/whisper `transcribe.py`; faster-whisper `BatchedInferencePipeline`.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::ops::Range;

use stonechat_audio::{SpeechMap, Vad};
use stonechat_nn::Backend;
use web_time::Instant;

use crate::align::Heard;
use crate::context::{Context, History};
use crate::fallback::{Decoded, is_silent};
use crate::hallucination;
use crate::rules::Rules;
use crate::speech::restore;
use crate::track::{Cut, Track};
use crate::words::speech_end;
use crate::{Error, Language, Options, Progress, Segment, Transcriber, Transcript};

/// A recording that is being transcribed: an iterator over its segments, each given as soon as it is
/// final. The first error is the last item.
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
    heard: Listened<'a>,
    language: Language,
    /// With its probability, if the language was detected.
    detected: Option<f32>,
    rules: Rules,
    context: Context,
    /// What the first window of the next track knows of what was said before.
    history: History,
    /// For pieces: finds where speech in one ends.
    vad: Option<Vad>,
    /// Stretches that are no tracks yet.
    pending: VecDeque<Range<usize>>,
    /// The first track, if the language was detected in it.
    first: Option<Track>,
    /// In order of time; those that are done wait for those before them.
    tracks: VecDeque<Track>,
    /// Where the window begins that is encoded already.
    encoded: Option<usize>,
    done_before: usize,
    /// Final segments that nobody has asked for yet.
    ready: VecDeque<Segment>,
    n_segments: usize,
    ended: bool,
    cancelled: bool,
    has_failed: bool,
}

/// What is listened to: a recording, or what is kept of it.
#[derive(Debug)]
pub(crate) struct Listened<'a> {
    pub(crate) samples: Cow<'a, [f32]>,
    /// Where they come from, unless they are all.
    pub(crate) map: Option<SpeechMap>,
    /// Whether stretches of it are pieces of longer ones.
    pub(crate) is_cut: bool,
}

impl<'a> Listened<'a> {
    /// A whole recording.
    pub(crate) fn all(samples: &'a [f32]) -> Self {
        Self { samples: Cow::Borrowed(samples), map: None, is_cut: false }
    }

    /// Samples of the recording.
    fn n_samples(&self) -> usize {
        self.map.as_ref().map_or(self.samples.len(), SpeechMap::n_samples)
    }
}

impl<'a, B: Backend> Transcription<'a, B> {
    /// Makes the buffers and finds the language; `ranges` are stretches of what is heard.
    pub(crate) async fn new(
        transcriber: &'a mut Transcriber<B>,
        heard: Listened<'a>,
        ranges: Vec<Range<usize>>,
        options: &'a Options,
    ) -> Result<Self, Error> {
        let n_windows = options.n_windows().min(ranges.len().max(1));
        transcriber.prepare(options, n_windows)?;
        let samples = &heard.samples[..];
        // What was not cut is heard as it would be without a batch.
        let vad = heard.is_cut.then(Vad::new).transpose()?;
        let mut pending = VecDeque::from(ranges);
        let first_window = pending.front().map_or(0, |range| range.start);
        let (mut first, mut encoded, mut detected) = (None, None, None);
        let language = match transcriber.known_language(options)? {
            Some(language) => language,
            None => {
                let range = pending.front().cloned();
                first = range.map(|range| transcriber.track(samples, range, heard.is_cut));
                let ranges = pending.make_contiguous();
                let (language, probability, window) =
                    transcriber.detect_language(samples, ranges, first.as_ref()).await?;
                (detected, encoded) = (Some(probability), window);
                if first.is_some() {
                    pending.pop_front();
                }
                language
            }
        };
        let model = transcriber.model();
        let rules = Rules::new(*model.special(), model.tokenizer(), options);
        let start = transcriber.start_sequence(language, options)?;
        let context = Context::new(model, start, first_window, options);
        Ok(Self {
            transcriber,
            options,
            heard,
            language,
            detected,
            rules,
            history: context.history(),
            context,
            vad,
            pending,
            first,
            tracks: VecDeque::new(),
            encoded,
            done_before: 0,
            ready: VecDeque::new(),
            n_segments: 0,
            ended: false,
            cancelled: false,
            has_failed: false,
        })
    }

    /// The language that is spoken.
    #[must_use]
    pub fn language(&self) -> Language {
        self.language
    }

    /// How probable the language is, if it was detected.
    #[must_use]
    pub fn language_probability(&self) -> Option<f32> {
        self.detected
    }

    /// Samples done and samples in all.
    #[must_use]
    pub fn position(&self) -> (usize, usize) {
        let n_samples = self.heard.n_samples();
        if self.ended && !self.cancelled {
            return (n_samples, n_samples);
        }
        let done = self.done_before + self.tracks.iter().map(Track::done_samples).sum::<usize>();
        (self.heard.map.as_ref().map_or(done, |map| map.original_end(done)), n_samples)
    }

    /// Whether it ended early because its transcriber's token was cancelled. There are no segments
    /// from the first window on that was not finished.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled
    }

    /// Whether a window failed at every temperature.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// The next segment, for callers that may not block.
    ///
    /// # Errors
    /// If the device fails.
    pub async fn next_async(&mut self) -> Result<Option<Segment>, Error> {
        while self.ready.is_empty() && self.advance().await? {}
        Ok(self.ready.pop_front())
    }

    /// Runs to the end and tells the news.
    pub(crate) async fn run(
        mut self,
        on_progress: &mut (dyn FnMut(Progress<'_>) + Send),
    ) -> Result<Transcript, Error> {
        if let Some(probability) = self.detected {
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
            let (done, all) = self.position();
            on_progress(Progress::Position(done, all));
        }
        transcript.cancelled = self.cancelled;
        Ok(transcript)
    }

    /// Decodes the windows at hand; whether that is news.
    async fn advance(&mut self) -> Result<bool, Error> {
        if self.ended {
            return Ok(false);
        }
        let decoded = self.decode_windows().await;
        // After an error there is nothing to go on with.
        self.ended = !matches!(decoded, Ok(Step::Decoded));
        match decoded? {
            Step::Decoded => self.collect(),
            Step::Done => {}
            Step::Cancelled => self.cancelled = true,
        }
        Ok(true)
    }

    async fn decode_windows(&mut self) -> Result<Step, Error> {
        if self.transcriber.is_cancelled() {
            return Ok(Step::Cancelled);
        }
        self.open_tracks();
        let mut open: Vec<&mut Track> =
            self.tracks.iter_mut().filter(|track| !track.is_done()).collect();
        if open.is_empty() {
            return Ok(Step::Done);
        }
        let (transcriber, options) = (&mut *self.transcriber, self.options);
        for (window, track) in open.iter().enumerate() {
            if self.encoded.take() != Some(track.window_start()) {
                transcriber.encode(&track.window(), window);
            }
        }
        let decoded =
            transcriber.decode_with_fallback(&open, &self.context, &self.rules, options).await?;
        let Some(decoded) = decoded else { return Ok(Step::Cancelled) };
        let is_translated = options.task == crate::Task::Translate;
        let written = if is_translated { "en" } else { self.language.code };
        for (window, (track, decoded)) in open.iter_mut().zip(decoded).enumerate() {
            if is_silent(&decoded.result, options) {
                track.skip_window();
            } else {
                let first = track.segments.len();
                let model = transcriber.model();
                let mut cut = track.cut(&decoded.result, model.special(), model.tokenizer());
                if options.word_timestamps {
                    let heard = Heard {
                        window,
                        start: self.context.start(),
                        language: written,
                        offset: track.offset(),
                        n_frames: track.size(),
                        last_speech: track.last_speech,
                    };
                    transcriber.time_words(track, &mut cut, heard, options).await?;
                }
                track.take(cut);
                let Decoded { temperature, has_failed, .. } = decoded;
                self.has_failed |= has_failed;
                let segments = &track.segments[first..];
                self.context.extend(&mut track.history, segments, temperature, has_failed);
            }
            track.find_sound(&self.heard.samples);
        }
        Ok(Step::Decoded)
    }

    /// Makes tracks of pending stretches until there are as many as windows side by side.
    fn open_tracks(&mut self) {
        let n_windows = self.options.n_windows();
        let samples = &self.heard.samples[..];
        let (n_old, is_cut) = (self.tracks.len(), self.heard.is_cut);
        let mut n_open = self.tracks.iter().filter(|track| !track.is_done()).count();
        while n_open < n_windows {
            let open = |range| self.transcriber.track(samples, range, is_cut);
            let next = || self.pending.pop_front().map(open);
            let Some(mut track) = self.first.take().or_else(next) else { break };
            track.history = self.history.clone();
            n_open += usize::from(track.find_sound(samples));
            self.tracks.push_back(track);
        }
        if let Some(vad) = &self.vad {
            let mut new: Vec<_> = self.tracks.range_mut(n_old..).collect();
            let options = &self.options.vad_options;
            let backend = self.transcriber.model().backend();
            backend.for_each(&mut new, |track| track.find_end(samples, vad, options));
        }
    }

    /// Takes the segments of the first track, and of those behind it once it is done.
    fn collect(&mut self) {
        while let Some(track) = self.tracks.front_mut() {
            for mut segment in track.segments.drain(..) {
                segment.id = self.n_segments;
                self.n_segments += 1;
                if let Some(map) = &self.heard.map {
                    restore(map, &mut segment);
                }
                self.ready.push_back(segment);
            }
            if !track.is_done() {
                break;
            }
            self.done_before = track.end();
            if self.options.n_windows() == 1 {
                self.history = std::mem::take(&mut track.history);
            }
            self.tracks.pop_front();
        }
    }
}

impl<B: Backend> Iterator for Transcription<'_, B> {
    type Item = Result<Segment, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        pollster::block_on(self.next_async()).transpose()
    }
}

/// What became of the windows at hand.
#[derive(Debug)]
enum Step {
    Decoded,
    /// There were none.
    Done,
    Cancelled,
}

impl<B: Backend> Transcriber<B> {
    /// Finds the words of what the window at hand of `track` was cut into, and moves on to the last of
    /// them.
    async fn time_words(
        &mut self,
        track: &mut Track,
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
}
