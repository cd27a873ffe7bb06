//! Conversions between seconds, samples (16 kHz) and mel frames (10 ms).

use crate::{HOP_LENGTH, SAMPLE_RATE};

/// Seconds of `samples`.
pub(crate) fn seconds(samples: usize) -> f64 {
    samples as f64 / SAMPLE_RATE as f64
}

/// Samples of `seconds`, rounded.
pub(crate) fn samples(seconds: f64) -> usize {
    (seconds * SAMPLE_RATE as f64).round() as usize
}

/// Frames of `seconds`, rounded.
pub(crate) fn frames(seconds: f64) -> usize {
    (seconds * (SAMPLE_RATE / HOP_LENGTH) as f64).round() as usize
}

/// Rounds to multiples of 10 ms: removes the rounding error of sums.
pub(crate) fn hundredths(seconds: f64) -> f64 {
    (seconds * 100.0).round() / 100.0
}
