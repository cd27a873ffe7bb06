//! Live transcription: LocalAgreement-2 over a growing audio buffer.
//!
//! ```text
//! each min_chunk_s of new audio: decode the whole buffer ──► hypothesis
//!     words that it has in common with the previous hypothesis are committed (final)
//!     the words after them are the partial text
//! buffer longer than trim_s: trimmed at the end of a committed segment; the text before is the prompt
//! silence (VAD): the utterance ends, its words are committed, the buffer is emptied
//! ```
//!
//! Source: Macháček, Dabre, Bojar 2023, `whisper_streaming`.

mod agreement;
mod decoder;
mod options;

use std::collections::HashMap;

use stonechat_audio::SpeechGate;
use stonechat_audio::vad::{STEP, Turn};

use crate::error::Error;
use crate::languages::Language;
use crate::loops::{self, LoopLimits};
use crate::options::{Options, VadMode};
use crate::times::samples;
use crate::transcript::{Segment, Word};
use crate::{SAMPLE_RATE, WINDOW_SAMPLES};
use agreement::{Agreement, key, letters};
pub use decoder::LiveDecoder;
pub use options::LiveOptions;

/// Maximum samples of the buffer: less than a window, with room for a further VAD step.
const MAX_BUFFER: usize = WINDOW_SAMPLES - 2 * SAMPLE_RATE;
/// Maximum seconds kept of a buffer that reached [`MAX_BUFFER`].
const MAX_KEPT_S: f64 = 20.0;
/// Maximum characters of the prompt.
const PROMPT_CHARS: usize = 200;
/// Consecutive words that also occur in the prompt, above which they count as copied from it.
const COPIED_WORDS: usize = 4;
/// Letters in those words.
const COPIED_LETTERS: usize = 12;
/// Loops of words are rejected: two hypotheses with the same loop would agree.
const LOOP: LoopLimits = LoopLimits { min_rounds: 4, min_tokens: 12 };

/// Event of a live stream. Times are seconds from the start of the stream.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum LiveEvent {
    /// Speech has begun; only with voice activity detection.
    SpeechStart {
        /// Start of the utterance with its padding, in seconds.
        time: f64,
    },
    /// Speech has ended, before its last words are decoded; only with voice activity detection.
    SpeechEnd {
        /// End of the utterance with its padding, in seconds.
        time: f64,
    },
    /// The language was detected; it stays for the rest of the stream.
    Language {
        /// Language code.
        language: &'static str,
    },
    /// Text after the committed words, not final; replaces the previous partial text.
    Partial {
        /// Text, with its leading space.
        text: String,
    },
    /// Final words after those committed before; they replace the partial text.
    Committed {
        /// The words, at least one.
        words: Vec<LiveWord>,
    },
    /// The utterance has ended; there is no partial text.
    End {
        /// End of the utterance, in seconds.
        time: f64,
    },
}

/// A committed word.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct LiveWord {
    /// The word with its times.
    #[serde(flatten)]
    pub word: Word,
    /// Seconds of the stream between the end of the word and its commit.
    pub latency: f64,
}

/// Callback of the events of a stream.
pub type OnEvent<'a> = dyn FnMut(LiveEvent) + Send + 'a;

/// A live stream of 16 kHz mono samples. Several streams can share one transcriber.
///
/// Memory is bounded. The sizes of the pushed blocks decide when hypotheses are made, and so can
/// change the text; equal blocks give equal events.
///
/// ```no_run
/// use stonechat_whisper::{LiveEvent, LiveOptions, LiveStream};
///
/// # fn listen(
/// #     transcriber: &mut stonechat_whisper::Transcriber,
/// #     microphone: impl Iterator<Item = Vec<f32>>,
/// # ) -> Result<(), stonechat_whisper::Error> {
/// let mut stream = LiveStream::new(LiveOptions::default())?;
/// let print = |events: Vec<LiveEvent>| {
///     for event in events {
///         if let LiveEvent::Committed { words } = event {
///             words.iter().for_each(|word| print!("{}", word.word.word));
///         }
///     }
/// };
/// for samples in microphone {
///     print(stream.push(transcriber, &samples)?);
/// }
/// print(stream.finish(transcriber)?);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct LiveStream {
    options: LiveOptions,
    /// Voice activity detection; `None` if all audio counts as speech.
    gate: Option<SpeechGate>,
    language: Option<Language>,
    /// Last samples of the stream.
    buffer: Vec<f32>,
    /// Position of the buffer in the stream, in samples.
    buffer_start: u64,
    n_pushed: u64,
    /// Stream position up to which the last hypothesis was decoded, in samples.
    decoded_until: u64,
    /// Whether the last hypothesis passed the thresholds.
    is_accepted: bool,
    is_speaking: bool,
    agreement: Agreement,
    /// Committed text before the buffer, at most [`PROMPT_CHARS`] long: the next prompt.
    previous_text: String,
    /// Partial text emitted last.
    partial: String,
    /// End of the last committed word, in seconds.
    committed_until: f64,
}

/// Result of decoding the buffer; times are seconds of the stream.
#[derive(Debug)]
struct Hypothesis {
    words: Vec<Word>,
    /// End of each segment, in seconds.
    ends: Vec<f64>,
    /// Unknown if it was cancelled before.
    language: Option<Language>,
    /// Whether it failed every attempt, was cancelled or repeats itself.
    is_rejected: bool,
}

impl LiveStream {
    /// Creates an empty stream.
    ///
    /// # Errors
    /// If an option is out of its range.
    pub fn new(options: LiveOptions) -> Result<Self, Error> {
        options.validate()?;
        let gate = match options.decoding.vad {
            VadMode::Off => None,
            VadMode::On | VadMode::Auto => Some(SpeechGate::new(&options.decoding.vad_options)?),
        };
        Ok(Self {
            language: options.decoding.language,
            is_speaking: gate.is_none(),
            gate,
            options,
            buffer: Vec::new(),
            buffer_start: 0,
            n_pushed: 0,
            decoded_until: 0,
            is_accepted: false,
            agreement: Agreement::default(),
            previous_text: String::new(),
            partial: String::new(),
            committed_until: 0.0,
        })
    }

    /// Seconds of audio pushed so far.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        seconds(self.n_pushed)
    }

    /// Whether an utterance has begun and not ended.
    #[must_use]
    pub fn is_speaking(&self) -> bool {
        self.is_speaking
    }

    /// Sets the seconds of new audio before the buffer is decoded again, as
    /// [`LiveOptions::min_chunk_s`]: a program may decode less often while the model is busy.
    pub fn set_min_chunk_s(&mut self, seconds: f64) {
        self.options.min_chunk_s = seconds;
    }

    /// Appends 16 kHz mono samples and decodes if enough are new; blocks until done.
    ///
    /// # Errors
    /// If an option does not fit the model or the device fails.
    pub fn push<D: LiveDecoder>(
        &mut self,
        decoder: &mut D,
        samples: &[f32],
    ) -> Result<Vec<LiveEvent>, D::Error> {
        pollster::block_on(self.push_async(decoder, samples))
    }

    /// Ends the utterance and commits its words; blocks until done. More samples may follow.
    ///
    /// # Errors
    /// If an option does not fit the model or the device fails.
    pub fn finish<D: LiveDecoder>(&mut self, decoder: &mut D) -> Result<Vec<LiveEvent>, D::Error> {
        pollster::block_on(self.finish_async(decoder))
    }

    /// Like [`push`](Self::push), without blocking.
    ///
    /// # Errors
    /// If an option does not fit the model or the device fails.
    pub async fn push_async<D: LiveDecoder>(
        &mut self,
        decoder: &mut D,
        samples: &[f32],
    ) -> Result<Vec<LiveEvent>, D::Error> {
        let mut events = Vec::new();
        self.push_with(decoder, samples, &mut |event| events.push(event)).await?;
        Ok(events)
    }

    /// Like [`finish`](Self::finish), without blocking.
    ///
    /// # Errors
    /// If an option does not fit the model or the device fails.
    pub async fn finish_async<D: LiveDecoder>(
        &mut self,
        decoder: &mut D,
    ) -> Result<Vec<LiveEvent>, D::Error> {
        let mut events = Vec::new();
        self.finish_with(decoder, &mut |event| events.push(event)).await?;
        Ok(events)
    }

    /// Like [`push_async`](Self::push_async), with each event as soon as it is known: the start and the end of speech come
    /// before its decoding.
    ///
    /// # Errors
    /// If an option does not fit the model or the device fails.
    pub async fn push_with<D: LiveDecoder>(
        &mut self,
        decoder: &mut D,
        samples: &[f32],
        on_event: &mut OnEvent<'_>,
    ) -> Result<(), D::Error> {
        self.n_pushed += samples.len() as u64;
        for step in samples.chunks(STEP) {
            self.buffer.extend_from_slice(step);
            let turns = self.gate.as_mut().map(|gate| gate.push(step)).unwrap_or_default();
            for turn in turns {
                match turn {
                    Turn::Start(at) => {
                        self.begin_utterance(at.saturating_sub(self.padding()), on_event);
                    }
                    Turn::End(at) => {
                        let end = at + self.padding();
                        self.end_utterance(decoder, end, on_event).await?;
                    }
                }
            }
            if !self.is_speaking {
                // The VAD reports the start of speech one or two steps late.
                let kept = self.padding() + 3 * STEP as u64;
                self.drop_before(self.buffer_end().saturating_sub(kept));
            } else if self.buffer.len() >= MAX_BUFFER {
                self.shorten_buffer(decoder, on_event).await?;
            }
        }
        let min_chunk = (self.options.min_chunk_s * SAMPLE_RATE as f64) as u64;
        if self.is_speaking && self.buffer_end() - self.decoded_until >= min_chunk {
            self.update(decoder, on_event).await?;
        }
        Ok(())
    }

    /// Like [`finish_async`](Self::finish_async), with each event as soon as it is known.
    ///
    /// # Errors
    /// If an option does not fit the model or the device fails.
    pub async fn finish_with<D: LiveDecoder>(
        &mut self,
        decoder: &mut D,
        on_event: &mut OnEvent<'_>,
    ) -> Result<(), D::Error> {
        if self.is_speaking {
            self.end_utterance(decoder, self.buffer_end(), on_event).await?;
            self.is_speaking = self.gate.is_none();
        }
        Ok(())
    }

    /// Samples decoded before and after speech.
    fn padding(&self) -> u64 {
        u64::from(self.options.decoding.vad_options.speech_pad_ms) * SAMPLE_RATE as u64 / 1000
    }

    /// End of the buffer in the stream, in samples.
    fn buffer_end(&self) -> u64 {
        self.buffer_start + self.buffer.len() as u64
    }

    /// Removes the samples before `position` of the stream from the buffer.
    fn drop_before(&mut self, position: u64) {
        let n = position.saturating_sub(self.buffer_start).min(self.buffer.len() as u64);
        self.buffer.drain(..n as usize);
        self.buffer_start += n;
    }

    /// Begins an utterance at sample `position` of the stream.
    fn begin_utterance(&mut self, position: u64, on_event: &mut OnEvent<'_>) {
        self.drop_before(position);
        self.decoded_until = self.buffer_start;
        self.is_speaking = true;
        on_event(LiveEvent::SpeechStart { time: seconds(self.buffer_start) });
    }

    /// Ends the utterance at sample `position` of the stream and commits its words.
    async fn end_utterance<D: LiveDecoder>(
        &mut self,
        decoder: &mut D,
        position: u64,
        on_event: &mut OnEvent<'_>,
    ) -> Result<(), D::Error> {
        let position = position.clamp(self.buffer_start, self.buffer_end());
        if self.gate.is_some() {
            on_event(LiveEvent::SpeechEnd { time: seconds(position) });
        }
        let mut is_accepted = self.is_accepted;
        let words = if self.decoded_until >= position && is_accepted {
            // The last hypothesis covers the utterance.
            self.agreement.commit_unconfirmed()
        } else {
            let hypothesis = self.decode(decoder, position, true).await?;
            is_accepted = !hypothesis.is_rejected;
            let rest = self.agreement.push_until(hypothesis.words, f64::INFINITY);
            self.fix_language(hypothesis.language, &rest, on_event);
            rest
        };
        self.commit(words, on_event);
        self.trim_until(f64::INFINITY);
        if !is_accepted {
            // A failed hypothesis in the prompt degrades the next one.
            self.previous_text.clear();
        }
        self.drop_before(position);
        self.decoded_until = self.buffer_start;
        (self.is_speaking, self.is_accepted) = (false, false);
        self.partial.clear();
        let time = seconds(position).max(self.committed_until);
        on_event(LiveEvent::End { time });
        Ok(())
    }

    /// Decodes the buffer, commits confirmed words, and trims a long buffer at a committed segment.
    async fn update<D: LiveDecoder>(
        &mut self,
        decoder: &mut D,
        on_event: &mut OnEvent<'_>,
    ) -> Result<(), D::Error> {
        let hypothesis = self.decode(decoder, self.buffer_end(), false).await?;
        self.is_accepted = !hypothesis.is_rejected;
        if hypothesis.is_rejected {
            return Ok(());
        }
        let words = self.agreement.push(hypothesis.words);
        self.fix_language(hypothesis.language, &words, on_event);
        self.commit(words, on_event);
        self.emit_partial(on_event);
        let trim = samples(self.options.trim_s);
        if self.buffer.len() > trim
            && let Some(committed) = self.agreement.committed_until()
        {
            // The last segment may not be complete.
            let ends = hypothesis.ends.split_last().map_or(&[][..], |(_, ends)| ends);
            if let Some(&end) = ends.iter().rev().find(|&&end| end <= committed) {
                self.trim_until(end);
            }
        }
        Ok(())
    }

    /// Trims a buffer that reached [`MAX_BUFFER`]: commits all segments but the last, and all words
    /// older than `trim_s` or half of [`MAX_KEPT_S`], whichever is less.
    async fn shorten_buffer<D: LiveDecoder>(
        &mut self,
        decoder: &mut D,
        on_event: &mut OnEvent<'_>,
    ) -> Result<(), D::Error> {
        let hypothesis = self.decode(decoder, self.buffer_end(), true).await?;
        let end = seconds(self.buffer_end());
        let last = hypothesis.ends.iter().rev().nth(1).copied().unwrap_or(0.0);
        let cut = last.max(end - self.options.trim_s.min(MAX_KEPT_S / 2.0));
        let words = self.agreement.push_until(hypothesis.words, cut);
        self.fix_language(hypothesis.language, &words, on_event);
        self.commit(words, on_event);
        // Not within a word, if that leaves at most `MAX_KEPT_S`.
        let cut = self.agreement.unconfirmed_start().map_or(cut, |start| start.min(cut));
        self.trim_until(cut.max(end - MAX_KEPT_S));
        self.emit_partial(on_event);
        Ok(())
    }

    /// Removes audio before `time` (seconds) from the buffer; the text of its committed words becomes
    /// the prompt.
    fn trim_until(&mut self, time: f64) {
        for word in self.agreement.trim_until(time) {
            self.previous_text += &word.word;
        }
        let n_chars = self.previous_text.chars().count();
        if let Some(excess) = n_chars.checked_sub(PROMPT_CHARS).filter(|&n| n > 0) {
            let from = self.previous_text.char_indices().nth(excess).map_or(0, |(at, _)| at);
            // The prompt begins with a whole word, if there are spaces.
            let from = self.previous_text[from..].find(' ').map_or(from, |space| from + space);
            self.previous_text.drain(..from);
        }
        if time.is_finite() {
            self.drop_before((time * SAMPLE_RATE as f64) as u64);
        }
    }

    /// Decodes the buffer up to sample `position` of the stream, with the previous text as prompt.
    /// If the words are copied from the prompt, decodes again without it.
    async fn decode<D: LiveDecoder>(
        &mut self,
        decoder: &mut D,
        position: u64,
        is_last: bool,
    ) -> Result<Hypothesis, D::Error> {
        let mut options = self.options.hypothesis_options(is_last);
        options.language = self.language;
        self.decoded_until = position;
        if options.condition_on_previous_text && !self.previous_text.is_empty() {
            let initial_prompt = Some(self.previous_text.clone());
            let with_prompt = Options { initial_prompt, ..options.clone() };
            let hypothesis = self.decode_with(decoder, position, &with_prompt).await?;
            if !copies_prompt(&hypothesis.words, &self.previous_text) {
                return Ok(hypothesis);
            }
            // With a short buffer, the model may copy its prompt. Words that are really repeated are
            // decoded without a prompt too.
            self.previous_text.clear();
        }
        self.decode_with(decoder, position, &options).await
    }

    /// Decodes the buffer up to sample `position` of the stream with `options`.
    async fn decode_with<D: LiveDecoder>(
        &self,
        decoder: &mut D,
        position: u64,
        options: &Options,
    ) -> Result<Hypothesis, D::Error> {
        let audio = &self.buffer[..(position - self.buffer_start) as usize];
        let offset = seconds(self.buffer_start);
        let transcript = decoder.decode(audio, options).await?;
        let language = Language::find(&transcript.language);
        let is_incomplete = transcript.has_failed || transcript.cancelled;
        let (mut words, mut ends) = (Vec::new(), Vec::new());
        for Segment { words: new, end, .. } in transcript.segments {
            ends.push(end + offset);
            words.extend(new.unwrap_or_default().into_iter().map(|word| Word {
                start: word.start + offset,
                end: word.end + offset,
                ..word
            }));
        }
        let n_kept = without_loop(&words);
        let is_rejected = is_incomplete || n_kept < words.len();
        words.truncate(n_kept);
        Ok(Hypothesis { words, ends, language, is_rejected })
    }

    /// Fixes the language at the first committed words.
    fn fix_language(
        &mut self,
        language: Option<Language>,
        words: &[Word],
        on_event: &mut OnEvent<'_>,
    ) {
        if self.language.is_none()
            && !words.is_empty()
            && let Some(language) = language
        {
            self.language = Some(language);
            on_event(LiveEvent::Language { language: language.code });
        }
    }

    /// Emits committed words, with times that ascend within the stream.
    fn commit(&mut self, words: Vec<Word>, on_event: &mut OnEvent<'_>) {
        if words.is_empty() {
            return;
        }
        // Committed words replace the partial text.
        self.partial.clear();
        let now = self.seconds();
        let mut live = Vec::with_capacity(words.len());
        for mut word in words {
            word.start = word.start.clamp(self.committed_until, now);
            word.end = word.end.clamp(word.start, now);
            self.committed_until = word.end;
            live.push(LiveWord { latency: now - word.end, word });
        }
        on_event(LiveEvent::Committed { words: live });
    }

    /// Emits the unconfirmed text, if it changed.
    fn emit_partial(&mut self, on_event: &mut OnEvent<'_>) {
        let text = self.agreement.unconfirmed_text();
        if text != self.partial {
            self.partial.clone_from(&text);
            on_event(LiveEvent::Partial { text });
        }
    }
}

/// Seconds of a number of samples.
fn seconds(n_samples: u64) -> f64 {
    n_samples as f64 / SAMPLE_RATE as f64
}

/// Whether at least [`COPIED_WORDS`] consecutive words occur in `prompt` in the same order.
fn copies_prompt(words: &[Word], prompt: &str) -> bool {
    let prompt = letters(prompt);
    let keys: Vec<String> = words.iter().map(|word| letters(&word.word)).collect();
    let is_copied = |first: usize| {
        let mut run = String::new();
        keys[first..].iter().enumerate().any(|(i, key)| {
            run += key;
            let is_long = i + 1 >= COPIED_WORDS && run.chars().count() >= COPIED_LETTERS;
            is_long && prompt.contains(&run)
        })
    };
    (0..keys.len()).any(is_copied)
}

/// Number of words left after the loop at the end is cut to one round.
fn without_loop(words: &[Word]) -> usize {
    let mut ids = HashMap::new();
    let numbered = |word: &Word| {
        let n = ids.len() as u32;
        *ids.entry(key(word)).or_insert(n)
    };
    let numbers: Vec<u32> = words.iter().map(numbered).collect();
    loops::without_repeats(&numbers, |_| true, LOOP).map_or(words.len(), <[u32]>::len)
}

#[cfg(test)]
mod tests;
