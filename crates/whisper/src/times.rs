//! Seconds, samples and frames.

use crate::{HOP_LENGTH, SAMPLE_RATE};

/// How long `samples` are.
pub(crate) fn seconds(samples: usize) -> f64 {
    samples as f64 / SAMPLE_RATE as f64
}

/// The sample at a time that is a multiple of 10 ms.
pub(crate) fn samples(seconds: f64) -> usize {
    (seconds * SAMPLE_RATE as f64).round() as usize
}

/// The number of frames that is nearest to a length.
pub(crate) fn frames(seconds: f64) -> usize {
    (seconds * (SAMPLE_RATE / HOP_LENGTH) as f64).round() as usize
}

/// Times are multiples of 10 ms; this removes the rounding error of their sums.
pub(crate) fn hundredths(seconds: f64) -> f64 {
    (seconds * 100.0).round() / 100.0
}
