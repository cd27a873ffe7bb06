//! Voice activity detection: the speech segments of a recording.
//!
//! - [`Vad`]: Silero VAD v6, whose weights are part of this crate (feature `vad-weights`) or given by [`set_weights`]; one
//!   probability per 32 ms.
//! - [`VadOptions::ranges`]: probabilities to speech segments, as faster-whisper 1.2.
//! - [`SpeechGate`]: both for a stream.
//! - [`SpeechMap`]: positions in the recording and in its concatenated speech segments.
//!
//! All positions are 16 kHz samples.

mod gate;
mod map;
mod network;
mod ranges;
mod weights;

use std::ops::Range;

use stonechat_compute::{Cpu, usable_cores};

use crate::{Error, SAMPLE_RATE};
pub use gate::{SpeechGate, Turn};
pub use map::SpeechMap;
use network::Network;
pub use ranges::VadOptions;
pub use weights::{has_weights, set_weights};

/// Samples per step of the network, 32 ms.
pub const STEP: usize = 512;

/// Maximum useful threads: the recurrence of the LSTM, a third of the work, runs on one; the others soon wait for it.
const MAX_THREADS: usize = 8;

/// Minimum length of a range without speech that is searched again, 2 s in samples.
const MIN_GAP: usize = 2 * SAMPLE_RATE as usize;
/// Minimum steps of speech found there, 0.4 s: without earlier input, the network may take the end of a word or a breath for
/// speech for a few steps.
const MIN_STEPS: usize = 12;
/// Root mean square below which nothing is searched, -70 dB of full scale: speech of a recording of 16 bits is louder.
const QUIET: f32 = 0.000_316;
/// Samples of a level measurement, half a second.
const QUIET_BLOCK: usize = SAMPLE_RATE as usize / 2;

/// The Silero VAD network and its thread team.
#[derive(Debug)]
pub struct Vad {
    network: Network,
}

impl Vad {
    /// Unpacks the weights, for one thread.
    ///
    /// # Errors
    /// If there are no weights or `STONECHAT_ISA` is malformed.
    pub fn new() -> Result<Self, Error> {
        Self::with_threads(1)
    }

    /// [`new`](Self::new) with `n_threads`, at most 8; 0 means one per physical core. All of it runs
    /// in parallel, but for the recurrence of the LSTM.
    ///
    /// # Errors
    /// If there are no weights, `STONECHAT_ISA` is malformed or threads cannot be started.
    pub fn with_threads(n_threads: usize) -> Result<Self, Error> {
        let n_threads = if n_threads == 0 { usable_cores() } else { n_threads };
        Ok(Self { network: Network::new(Cpu::new(n_threads.min(MAX_THREADS))?)? })
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
    /// Ranges without speech that are not quiet are run through the network again from a fresh state: after loud speech it misses
    /// quiet speech for many seconds.
    ///
    /// # Errors
    /// If an option is out of its range.
    pub fn detect(
        &self,
        samples: &[f32],
        options: &VadOptions,
    ) -> Result<Vec<Range<usize>>, Error> {
        options.validate()?;
        let mut probabilities = self.probabilities(samples);
        let found = self.missed_speech(samples, options, &probabilities);
        for (step, probability) in found {
            probabilities[step] = probability;
        }
        Ok(options.ranges(&probabilities, samples.len()))
    }

    /// Steps of speech, and their probabilities, that the network finds only in the stretches without speech by `probabilities`.
    fn missed_speech(
        &self,
        samples: &[f32],
        options: &VadOptions,
        probabilities: &[f32],
    ) -> Vec<(usize, f32)> {
        let mut found = Vec::new();
        for gap in options.gaps(probabilities, samples.len()) {
            if gap.len() < MIN_GAP || is_quiet(&samples[gap.clone()]) {
                continue;
            }
            let again = self.probabilities(&samples[gap.clone()]);
            for speech in options.unpadded(&again, gap.len()) {
                let steps = speech.start / STEP..speech.end.div_ceil(STEP);
                let is_speech = |&&p: &&f32| p >= options.threshold;
                if again[steps.clone()].iter().filter(is_speech).count() >= MIN_STEPS {
                    found.extend(steps.map(|step| (gap.start / STEP + step, again[step])));
                }
            }
        }
        found
    }
}

/// Whether no half second of `samples` is louder than [`QUIET`].
fn is_quiet(samples: &[f32]) -> bool {
    let is_quiet = |block: &[f32]| {
        let energy: f32 = block.iter().map(|sample| sample * sample).sum();
        energy <= QUIET * QUIET * block.len() as f32
    };
    samples.chunks(QUIET_BLOCK).all(is_quiet)
}

#[cfg(test)]
mod tests;
