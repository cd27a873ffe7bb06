//! Time and work of transcriptions.

use std::ops::AddAssign;
use std::time::Duration;

/// Wall-clock time and work since the transcriber was made.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct Timings {
    /// Time for log-mel spectrograms; a part of it while the device encodes.
    pub mel: Duration,
    /// Time for the encoder and the keys and values of cross-attention.
    pub encode: Duration,
    /// Time for decoder steps with texts.
    pub decode: Duration,
    /// Time for decoder steps of word alignment alone.
    pub align: Duration,
    /// Windows encoded.
    pub windows: usize,
    /// Rows of decoder steps: tokens of prompts, texts and alignment.
    pub rows: usize,
    /// Attempts that failed a threshold.
    pub fallbacks: usize,
    /// Tokens of the results kept.
    pub tokens: usize,
}

impl AddAssign for Timings {
    fn add_assign(&mut self, other: Self) {
        self.mel += other.mel;
        self.encode += other.encode;
        self.decode += other.decode;
        self.align += other.align;
        self.windows += other.windows;
        self.rows += other.rows;
        self.fallbacks += other.fallbacks;
        self.tokens += other.tokens;
    }
}
