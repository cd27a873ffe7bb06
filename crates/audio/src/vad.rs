//! Voice activity detection: which stretches of a recording hold speech.
//!
//! [`Vad`] runs Silero VAD v6, whose weights are part of this crate, and gives the probability of
//! speech for each 32 ms; [`VadOptions::ranges`] makes stretches of samples of them, as
//! faster-whisper 1.2 does; [`SpeechMap`] maps positions between the recording and what is kept of
//! it. [`SpeechGate`] does the first two for sound that comes piece by piece. All positions are 16 kHz
//! samples.

mod gate;
mod map;
mod network;
mod ranges;

use std::ops::Range;

use stonechat_compute::Cpu;

use crate::Error;
pub use gate::{SpeechGate, Turn};
pub use map::SpeechMap;
use network::Network;
pub use ranges::VadOptions;

/// Samples of one step of the network.
pub const STEP: usize = 512;

/// The network.
#[derive(Debug)]
pub struct Vad {
    network: Network,
}

impl Vad {
    /// Unpacks the weights, for one thread.
    ///
    /// # Errors
    /// If `STONECHAT_ISA` has no meaning.
    pub fn new() -> Result<Self, Error> {
        Self::with_threads(1)
    }

    /// The same for `n_threads`; 0 means one a physical core. Half of the work is shared out: what each step has of its
    /// own.
    ///
    /// # Errors
    /// If `STONECHAT_ISA` has no meaning or threads cannot be started.
    pub fn with_threads(n_threads: usize) -> Result<Self, Error> {
        Ok(Self { network: Network::new(Cpu::new(n_threads)?) })
    }

    /// The probability of speech in each [`STEP`] samples; the last step is padded with zeros.
    ///
    /// There is always one step that ends past the last sample, as in faster-whisper.
    #[must_use]
    pub fn probabilities(&self, samples: &[f32]) -> Vec<f32> {
        self.network.run(samples)
    }

    /// The stretches of `samples` with speech, ascending and disjoint.
    ///
    /// # Errors
    /// If an option is out of its range.
    pub fn detect(
        &self,
        samples: &[f32],
        options: &VadOptions,
    ) -> Result<Vec<Range<usize>>, Error> {
        options.validate()?;
        Ok(options.ranges(&self.probabilities(samples), samples.len()))
    }
}

#[cfg(test)]
mod tests;
