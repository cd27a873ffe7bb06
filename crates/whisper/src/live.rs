//! Speech as it comes: LocalAgreement-2 over a growing buffer.
//!
//! Every chunk of new sound, the whole buffer is decoded again. The words that two hypotheses in a row
//! have in common are committed and do not change any more. A buffer that has become long is cut where
//! a committed segment ends; the text before it is then the prompt. Silence ends an utterance: all of
//! its words are committed and the next one begins with an empty buffer.
//!
//! Source: Macháček, Dabre, Bojar 2023, `whisper_streaming`.

mod agreement;
mod options;

use std::collections::HashMap;

use stonechat_audio::SpeechGate;
use stonechat_audio::vad::{STEP, Turn};
use stonechat_nn::Backend;

use crate::loops::{self, Limits};
use crate::times::samples;
use crate::{
    Error, Language, Options, SAMPLE_RATE, Segment, Transcriber, VadMode, WINDOW_SAMPLES, Word,
};
use agreement::{Agreement, key, letters};
pub use options::LiveOptions;

/// Longest buffer: room for what one more piece brings is left in a window.
const MAX_BUFFER: usize = WINDOW_SAMPLES - 2 * SAMPLE_RATE;
/// What is left at most of a buffer that was too long, in seconds.
const MAX_KEPT_S: f64 = 20.0;
/// Characters of committed text that a buffer is told of.
const PROMPT_CHARS: usize = 200;
/// So many words in a row, of so many letters at least, that the prompt has too may be copied from it.
const ECHO_WORDS: usize = 4;
const ECHO_LETTERS: usize = 12;
/// Words that are repeated so often are no hypothesis: loops agree with themselves.
const LOOP: Limits = Limits { min_rounds: 4, min_tokens: 12 };

/// News of a stream; times are seconds from its beginning.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum LiveEvent {
    /// The language was detected and will be kept.
    Language {
        /// Its code.
        language: &'static str,
    },
    /// What follows the committed words, as far as can be told; replaces what was told before.
    Partial {
        /// The text, with a space before it.
        text: String,
    },
    /// Words that follow those committed before and replace the partial text. They do not change any
    /// more.
    Committed {
        /// The words, at least one.
        words: Vec<LiveWord>,
    },
    /// The utterance has ended, and with it the partial text.
    End {
        /// When.
        time: f64,
    },
}

/// A committed word.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct LiveWord {
    /// The word with its times.
    #[serde(flatten)]
    pub word: Word,
    /// Seconds of the stream from its end to when it was committed.
    pub latency: f64,
}

/// A stream of 16 kHz mono samples on its way to text. Several can share a transcriber.
///
/// Its memory does not grow with the stream. How the stream is cut into pieces decides when hypotheses
/// are made, and by that the text; the same pieces give the same events.
///
/// ```no_run
/// use stonechat_whisper::{LiveEvent, LiveOptions, LiveStream};
///
/// # fn listen(
/// #     transcriber: &mut stonechat_whisper::Transcriber<stonechat_nn::Cpu>,
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
    /// `None`: all is speech.
    gate: Option<SpeechGate>,
    language: Option<Language>,
    /// The end of what was pushed.
    buffer: Vec<f32>,
    /// Samples before the buffer.
    n_before: u64,
    n_pushed: u64,
    /// Where the stream stood when the last hypothesis was made.
    heard_until: u64,
    /// Whether that one passed the thresholds.
    is_sound: bool,
    is_speaking: bool,
    agreement: Agreement,
    /// The last committed text that has left the buffer.
    earlier: String,
    /// The partial text that was told last.
    partial: String,
    /// Where the last committed word ends.
    committed_until: f64,
}

/// What the buffer was decoded to.
#[derive(Debug)]
struct Hypothesis {
    words: Vec<Word>,
    /// Where its segments end.
    ends: Vec<f64>,
    language: Language,
    /// Whether it failed, or repeats itself.
    is_rejected: bool,
}

impl LiveStream {
    /// A stream before its first sample.
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
            n_before: 0,
            n_pushed: 0,
            heard_until: 0,
            is_sound: false,
            agreement: Agreement::default(),
            earlier: String::new(),
            partial: String::new(),
            committed_until: 0.0,
        })
    }

    /// Seconds of sound that were pushed.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.n_pushed as f64 / SAMPLE_RATE as f64
    }

    /// Takes what was said next; blocks until it is decoded.
    ///
    /// # Errors
    /// If an option does not fit the model or the device fails.
    pub fn push<B: Backend>(
        &mut self,
        transcriber: &mut Transcriber<B>,
        samples: &[f32],
    ) -> Result<Vec<LiveEvent>, Error> {
        pollster::block_on(self.push_async(transcriber, samples))
    }

    /// Ends the utterance: all that was said is committed. Another may follow.
    ///
    /// # Errors
    /// If an option does not fit the model or the device fails.
    pub fn finish<B: Backend>(
        &mut self,
        transcriber: &mut Transcriber<B>,
    ) -> Result<Vec<LiveEvent>, Error> {
        pollster::block_on(self.finish_async(transcriber))
    }

    /// Like [`push`](Self::push), for callers that may not block.
    ///
    /// # Errors
    /// If an option does not fit the model or the device fails.
    pub async fn push_async<B: Backend>(
        &mut self,
        transcriber: &mut Transcriber<B>,
        samples: &[f32],
    ) -> Result<Vec<LiveEvent>, Error> {
        let mut events = Vec::new();
        self.n_pushed += samples.len() as u64;
        for piece in samples.chunks(STEP) {
            self.buffer.extend_from_slice(piece);
            let turns = self.gate.as_mut().map(|gate| gate.push(piece)).unwrap_or_default();
            for turn in turns {
                match turn {
                    Turn::Start(at) => self.begin(at.saturating_sub(self.padding())),
                    Turn::End(at) => {
                        let end = at + self.padding();
                        self.end(transcriber, end, &mut events).await?;
                    }
                }
            }
            if !self.is_speaking {
                // The beginning of speech shows a step after it, or two.
                let kept = self.padding() + 3 * STEP as u64;
                self.cut_at(self.buffer_end().saturating_sub(kept));
            } else if self.buffer.len() >= MAX_BUFFER {
                self.make_room(transcriber, &mut events).await?;
            }
        }
        let min_chunk = (self.options.min_chunk_s * SAMPLE_RATE as f64) as u64;
        if self.is_speaking && self.buffer_end() - self.heard_until >= min_chunk {
            self.listen(transcriber, &mut events).await?;
        }
        Ok(events)
    }

    /// Like [`finish`](Self::finish), for callers that may not block.
    ///
    /// # Errors
    /// If an option does not fit the model or the device fails.
    pub async fn finish_async<B: Backend>(
        &mut self,
        transcriber: &mut Transcriber<B>,
    ) -> Result<Vec<LiveEvent>, Error> {
        let mut events = Vec::new();
        if self.is_speaking {
            self.end(transcriber, self.buffer_end(), &mut events).await?;
            self.is_speaking = self.gate.is_none();
        }
        Ok(events)
    }

    /// What is heard before and after speech, in samples.
    fn padding(&self) -> u64 {
        u64::from(self.options.decoding.vad_options.speech_pad_ms) * SAMPLE_RATE as u64 / 1000
    }

    fn buffer_end(&self) -> u64 {
        self.n_before + self.buffer.len() as u64
    }

    /// Removes the sound before `position` from the buffer.
    fn cut_at(&mut self, position: u64) {
        let n = position.saturating_sub(self.n_before).min(self.buffer.len() as u64);
        self.buffer.drain(..n as usize);
        self.n_before += n;
    }

    /// Begins an utterance at `position`.
    fn begin(&mut self, position: u64) {
        self.cut_at(position);
        self.heard_until = self.n_before;
        self.is_speaking = true;
    }

    /// Ends the utterance at `position` and commits all of it.
    async fn end<B: Backend>(
        &mut self,
        transcriber: &mut Transcriber<B>,
        position: u64,
        events: &mut Vec<LiveEvent>,
    ) -> Result<(), Error> {
        let position = position.clamp(self.n_before, self.buffer_end());
        let mut is_sound = self.is_sound;
        let words = if self.heard_until >= position && is_sound {
            // The last hypothesis heard all of it.
            self.agreement.commit_rest()
        } else {
            let hypothesis = self.decode(transcriber, position, true).await?;
            is_sound = !hypothesis.is_rejected;
            let rest = self.agreement.push_until(hypothesis.words, f64::INFINITY);
            self.settle_language(hypothesis.language, &rest, events);
            rest
        };
        self.commit(words, events);
        self.forget_until(f64::INFINITY);
        if !is_sound {
            // It would lead the next hypothesis astray.
            self.earlier.clear();
        }
        self.cut_at(position);
        self.heard_until = self.n_before;
        (self.is_speaking, self.is_sound) = (false, false);
        self.partial.clear();
        let time = (position as f64 / SAMPLE_RATE as f64).max(self.committed_until);
        events.push(LiveEvent::End { time });
        Ok(())
    }

    /// Makes a hypothesis of the buffer and commits what it confirms.
    async fn listen<B: Backend>(
        &mut self,
        transcriber: &mut Transcriber<B>,
        events: &mut Vec<LiveEvent>,
    ) -> Result<(), Error> {
        let hypothesis = self.decode(transcriber, self.buffer_end(), false).await?;
        self.is_sound = !hypothesis.is_rejected;
        if hypothesis.is_rejected {
            return Ok(());
        }
        let words = self.agreement.push(hypothesis.words);
        self.settle_language(hypothesis.language, &words, events);
        self.commit(words, events);
        self.tell_partial(events);
        let trim = samples(self.options.trim_s);
        if self.buffer.len() > trim
            && let Some(committed) = self.agreement.committed_until()
        {
            // The last segment may go on.
            let ends = hypothesis.ends.split_last().map_or(&[][..], |(_, ends)| ends);
            if let Some(&end) = ends.iter().rev().find(|&&end| end <= committed) {
                self.forget_until(end);
            }
        }
        Ok(())
    }

    /// Shortens a buffer that agreement did not: all segments but the last are committed, or what is
    /// older than the buffer should be.
    async fn make_room<B: Backend>(
        &mut self,
        transcriber: &mut Transcriber<B>,
        events: &mut Vec<LiveEvent>,
    ) -> Result<(), Error> {
        let hypothesis = self.decode(transcriber, self.buffer_end(), true).await?;
        let end = self.buffer_end() as f64 / SAMPLE_RATE as f64;
        let last = hypothesis.ends.iter().rev().nth(1).copied().unwrap_or(0.0);
        let cut = last.max(end - self.options.trim_s.min(MAX_KEPT_S / 2.0));
        let words = self.agreement.push_until(hypothesis.words, cut);
        self.settle_language(hypothesis.language, &words, events);
        self.commit(words, events);
        // Not within a word, if that leaves room.
        let cut = self.agreement.rest_start().map_or(cut, |start| start.min(cut));
        self.forget_until(cut.max(end - MAX_KEPT_S));
        self.tell_partial(events);
        Ok(())
    }

    /// Cuts the buffer at a time of the stream and keeps the text of its committed words as a prompt.
    fn forget_until(&mut self, time: f64) {
        for word in self.agreement.take_until(time) {
            self.earlier += &word.word;
        }
        let n_chars = self.earlier.chars().count();
        if let Some(excess) = n_chars.checked_sub(PROMPT_CHARS).filter(|&n| n > 0) {
            let from = self.earlier.char_indices().nth(excess).map_or(0, |(at, _)| at);
            // A prompt begins with a whole word, where there are spaces.
            let from = self.earlier[from..].find(' ').map_or(from, |space| from + space);
            self.earlier.drain(..from);
        }
        if time.is_finite() {
            self.cut_at((time * SAMPLE_RATE as f64) as u64);
        }
    }

    /// Decodes the buffer up to `position`.
    async fn decode<B: Backend>(
        &mut self,
        transcriber: &mut Transcriber<B>,
        position: u64,
        is_last: bool,
    ) -> Result<Hypothesis, Error> {
        let mut options = self.options.of_hypotheses(is_last);
        options.language = self.language;
        self.heard_until = position;
        if options.condition_on_previous_text && !self.earlier.is_empty() {
            let initial_prompt = Some(self.earlier.clone());
            let told = Options { initial_prompt, ..options.clone() };
            let hypothesis = self.hear(transcriber, position, &told).await?;
            if !echoes(&hypothesis.words, &self.earlier) {
                return Ok(hypothesis);
            }
            // Of a short buffer, the model may copy what it was told. If it was said again, it is heard so too.
            self.earlier.clear();
        }
        self.hear(transcriber, position, &options).await
    }

    /// Decodes the buffer up to `position` with `options`.
    async fn hear<B: Backend>(
        &self,
        transcriber: &mut Transcriber<B>,
        position: u64,
        options: &Options,
    ) -> Result<Hypothesis, Error> {
        let heard = &self.buffer[..(position - self.n_before) as usize];
        let offset = self.n_before as f64 / SAMPLE_RATE as f64;
        let mut run = transcriber.segments_async(heard, options).await?;
        let (mut words, mut ends) = (Vec::new(), Vec::new());
        while let Some(segment) = run.next_async().await? {
            let Segment { words: spoken, end, .. } = segment;
            ends.push(end + offset);
            words.extend(spoken.unwrap_or_default().into_iter().map(|word| Word {
                start: word.start + offset,
                end: word.end + offset,
                ..word
            }));
        }
        let n_kept = without_loop(&words);
        let is_rejected = run.has_failed() || run.is_cancelled() || n_kept < words.len();
        words.truncate(n_kept);
        Ok(Hypothesis { words, ends, language: run.language(), is_rejected })
    }

    /// Keeps the language of the first committed words.
    fn settle_language(&mut self, language: Language, words: &[Word], events: &mut Vec<LiveEvent>) {
        if self.language.is_none() && !words.is_empty() {
            self.language = Some(language);
            events.push(LiveEvent::Language { language: language.code });
        }
    }

    /// Tells of committed words; their times ascend and do not lie beyond the stream.
    fn commit(&mut self, words: Vec<Word>, events: &mut Vec<LiveEvent>) {
        if words.is_empty() {
            return;
        }
        // They were part of the partial text, or replace it.
        self.partial.clear();
        let now = self.seconds();
        let mut live = Vec::with_capacity(words.len());
        for mut word in words {
            word.start = word.start.clamp(self.committed_until, now);
            word.end = word.end.clamp(word.start, now);
            self.committed_until = word.end;
            live.push(LiveWord { latency: now - word.end, word });
        }
        events.push(LiveEvent::Committed { words: live });
    }

    /// Tells the text that is not confirmed, if it changed.
    fn tell_partial(&mut self, events: &mut Vec<LiveEvent>) {
        let text = self.agreement.rest_text();
        if text != self.partial {
            self.partial.clone_from(&text);
            events.push(LiveEvent::Partial { text });
        }
    }
}

/// Whether words stand in `earlier` in the same order, so many of them that it is hardly chance.
fn echoes(words: &[Word], earlier: &str) -> bool {
    let earlier = letters(earlier);
    let keys: Vec<String> = words.iter().map(|word| letters(&word.word)).collect();
    let is_copied = |first: usize| {
        let mut run = String::new();
        keys[first..].iter().enumerate().any(|(i, key)| {
            run += key;
            let is_long = i + 1 >= ECHO_WORDS && run.chars().count() >= ECHO_LETTERS;
            is_long && earlier.contains(&run)
        })
    };
    (0..keys.len()).any(is_copied)
}

/// How many words are left if those go that repeat others without end.
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
