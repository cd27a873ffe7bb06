//! Live transcription: LocalAgreement-2 over a growing audio buffer.
//!
//! ```text
//! each min_chunk_s of new audio: decode the whole buffer ──► hypothesis
//!     words that it has in common with the previous hypothesis are committed (final)
//!     the words after them are the partial text
//! buffer longer than trim_s: trimmed at the end of a committed segment; the text before is the prompt
//! silence (VAD): the utterance ends, its words are committed, the buffer is emptied; committed words that the last
//!     hypothesis hears otherwise are revised
//! ```
//!
//! Source: Macháček, Dabre, Bojar 2023, `whisper_streaming`.

mod agreement;
mod buffer;
mod decoder;
mod event;
mod hypothesis;
mod options;

use stonechat_audio::SpeechGate;
use stonechat_audio::vad::{STEP, Turn};

use crate::SAMPLE_RATE;
use crate::error::Error;
use crate::languages::Language;
use crate::options::VadMode;
use agreement::Agreement;
use buffer::MAX_BUFFER;
pub use decoder::LiveDecoder;
pub use event::{LiveEvent, LiveWord, OnEvent};
pub use options::LiveOptions;

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
    /// Committed text before the buffer, at most [`buffer::PROMPT_CHARS`] long: the next prompt.
    previous_text: String,
    /// Partial text emitted last.
    partial: String,
    /// End of the last committed word, in seconds.
    committed_until: f64,
}

/// Samples and the turns of speech in them, by [`LiveStream::detect`].
#[derive(Debug)]
pub struct DetectedSpeech<'a> {
    samples: &'a [f32],
    /// Turns, each with the index of the step that completes it.
    turns: Vec<(usize, Turn)>,
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
        let speech = self.detect(samples);
        self.push_detected(decoder, speech, on_event).await
    }

    /// Runs voice activity detection on the next samples, which [`push_detected`](Self::push_detected) must get.
    ///
    /// CPU work without waiting, for programs that keep it off the threads of their runtime.
    pub fn detect<'a>(&mut self, samples: &'a [f32]) -> DetectedSpeech<'a> {
        let mut turns = Vec::new();
        if let Some(gate) = &mut self.gate {
            for (i, step) in samples.chunks(STEP).enumerate() {
                turns.extend(gate.push(step).into_iter().map(|turn| (i, turn)));
            }
        }
        DetectedSpeech { samples, turns }
    }

    /// Like [`push_with`](Self::push_with), after [`detect`](Self::detect) of the same samples.
    ///
    /// # Errors
    /// If an option does not fit the model or the device fails.
    pub async fn push_detected<D: LiveDecoder>(
        &mut self,
        decoder: &mut D,
        DetectedSpeech { samples, turns }: DetectedSpeech<'_>,
        on_event: &mut OnEvent<'_>,
    ) -> Result<(), D::Error> {
        self.n_pushed += samples.len() as u64;
        let mut turns = turns.into_iter().peekable();
        for (i, step) in samples.chunks(STEP).enumerate() {
            self.buffer.extend_from_slice(step);
            while let Some((_, turn)) = turns.next_if(|(at, _)| *at == i) {
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
        if is_accepted {
            self.revise(on_event);
        }
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
}

/// Seconds of a number of samples.
fn seconds(n_samples: u64) -> f64 {
    n_samples as f64 / SAMPLE_RATE as f64
}

#[cfg(test)]
mod tests;
