//! Start and end of speech in a stream.

use std::fmt;

use stonechat_compute::Cpu;

use super::network::{Network, Stream};
use super::ranges::samples;
use super::{STEP, VadOptions};
use crate::Error;

/// Start or end of a speech segment; positions count the samples of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Speech begins here.
    Start(u64),
    /// End of a speech segment; the minimum silence of the options has followed.
    End(u64),
}

/// Streaming voice activity detection by the thresholds and the minimum silence of [`VadOptions`].
/// Its other options, padding among them, are up to the caller.
pub struct SpeechGate {
    network: Network,
    stream: Stream,
    threshold: f32,
    lower_threshold: f32,
    min_silence: u64,
    /// Start of the next step.
    at: u64,
    is_speech: bool,
    /// Start of the silence after the current speech.
    silence_start: Option<u64>,
}

impl fmt::Debug for SpeechGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpeechGate")
            .field("at", &self.at)
            .field("is_speech", &self.is_speech)
            .field("silence_start", &self.silence_start)
            .finish_non_exhaustive()
    }
}

impl SpeechGate {
    /// A gate before the first sample.
    ///
    /// # Errors
    /// If an option is out of its range, there are no weights, or `STONECHAT_ISA` is malformed.
    pub fn new(options: &VadOptions) -> Result<Self, Error> {
        options.validate()?;
        let network = Network::new(Cpu::new(1)?)?;
        Ok(Self {
            stream: network.stream(),
            network,
            threshold: options.threshold,
            lower_threshold: options.lower_threshold(),
            min_silence: samples(options.min_silence_ms) as u64,
            at: 0,
            is_speech: false,
            silence_start: None,
        })
    }

    /// Whether a speech segment has started and not ended.
    #[must_use]
    pub fn is_speech(&self) -> bool {
        self.is_speech
    }

    /// Appends samples to the stream; the starts and ends that they complete.
    pub fn push(&mut self, samples: &[f32]) -> Vec<Turn> {
        let mut turns = Vec::new();
        for &probability in self.network.push(&mut self.stream, samples) {
            let at = self.at;
            self.at += STEP as u64;
            if probability >= self.threshold {
                self.silence_start = None;
                if !self.is_speech {
                    self.is_speech = true;
                    turns.push(Turn::Start(at));
                }
            } else if self.is_speech && probability < self.lower_threshold {
                let start = *self.silence_start.get_or_insert(at);
                if at - start >= self.min_silence {
                    (self.is_speech, self.silence_start) = (false, None);
                    turns.push(Turn::End(start));
                }
            }
        }
        turns
    }
}
