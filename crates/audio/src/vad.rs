//! Voice activity detection: the speech segments of a recording.
//!
//! - [`Vad`]: Silero VAD v6, whose weights are part of this crate; one probability per 32 ms.
//! - [`VadOptions::ranges`]: probabilities to speech segments, as faster-whisper 1.2.
//! - [`SpeechGate`]: both for a stream.
//! - [`SpeechMap`]: positions in the recording and in its concatenated speech segments.
//!
//! All positions are 16 kHz samples.

mod gate;
mod map;
mod network;
mod ranges;

use std::ops::Range;

use stonechat_compute::{Cpu, usable_cores};

use crate::Error;
pub use gate::{SpeechGate, Turn};
pub use map::SpeechMap;
use network::Network;
pub use ranges::VadOptions;

/// Samples per step of the network, 32 ms.
pub const STEP: usize = 512;

/// Maximum useful threads: one runs the recurrence of the LSTM, a third of the work, and few keep up with it.
const MAX_THREADS: usize = 8;

/// The Silero VAD network and its thread team.
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

    /// [`new`](Self::new) with `n_threads`, at most 8; 0 means one per physical core. All of it runs
    /// in parallel, but for the recurrence of the LSTM.
    ///
    /// # Errors
    /// If `STONECHAT_ISA` has no meaning or threads cannot be started.
    pub fn with_threads(n_threads: usize) -> Result<Self, Error> {
        let n_threads = if n_threads == 0 { usable_cores() } else { n_threads };
        Ok(Self { network: Network::new(Cpu::new(n_threads.min(MAX_THREADS))?) })
    }

    /// The probability of speech in each [`STEP`] samples; the last step is padded with zeros.
    ///
    /// The last step ends past the last sample, as in faster-whisper.
    #[must_use]
    pub fn probabilities(&self, samples: &[f32]) -> Vec<f32> {
        self.network.run(samples)
    }

    /// The speech segments of `samples`, ascending and disjoint.
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
