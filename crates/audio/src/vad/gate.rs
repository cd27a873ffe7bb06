//! Where speech begins and ends in sound that comes piece by piece.

use std::fmt;

use stonechat_compute::Cpu;

use super::network::{Network, Stream};
use super::ranges::samples;
use super::{STEP, VadOptions};
use crate::Error;

/// A turn between speech and silence; positions count the samples of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Speech begins here.
    Start(u64),
    /// Speech ended here; as much silence as the options ask for has followed.
    End(u64),
}

/// Tells speech from silence while a stream goes on, by the thresholds and the shortest silence of
/// [`VadOptions`]. Its other options, padding among them, are up to the caller.
pub struct SpeechGate {
    network: Network,
    stream: Stream,
    threshold: f32,
    lower_threshold: f32,
    min_silence: u64,
    /// Where the next step begins.
    at: u64,
    is_speech: bool,
    /// Where the silence began that follows speech.
    quiet: Option<u64>,
}

impl fmt::Debug for SpeechGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpeechGate")
            .field("at", &self.at)
            .field("is_speech", &self.is_speech)
            .field("quiet", &self.quiet)
            .finish_non_exhaustive()
    }
}

impl SpeechGate {
    /// A gate before the first sample.
    ///
    /// # Errors
    /// If an option is out of its range, or `STONECHAT_ISA` has no meaning.
    pub fn new(options: &VadOptions) -> Result<Self, Error> {
        options.validate()?;
        let network = Network::new(Cpu::new(1)?);
        Ok(Self {
            stream: network.stream(),
            network,
            threshold: options.threshold,
            lower_threshold: options.lower_threshold(),
            min_silence: samples(options.min_silence_ms) as u64,
            at: 0,
            is_speech: false,
            quiet: None,
        })
    }

    /// Whether somebody speaks, or did and was not silent for long enough.
    #[must_use]
    pub fn is_speech(&self) -> bool {
        self.is_speech
    }

    /// Takes samples and gives the turns that show in them.
    pub fn push(&mut self, samples: &[f32]) -> Vec<Turn> {
        let mut turns = Vec::new();
        for &probability in self.network.push(&mut self.stream, samples) {
            let at = self.at;
            self.at += STEP as u64;
            if probability >= self.threshold {
                self.quiet = None;
                if !self.is_speech {
                    self.is_speech = true;
                    turns.push(Turn::Start(at));
                }
            } else if self.is_speech && probability < self.lower_threshold {
                let quiet = *self.quiet.get_or_insert(at);
                if at - quiet >= self.min_silence {
                    (self.is_speech, self.quiet) = (false, None);
                    turns.push(Turn::End(quiet));
                }
            }
        }
        turns
    }
}
