//! Logit filter of a row.

use std::ops::Range;

/// Logit filter of one row, the tokens of a vocabulary that may follow: text tokens, then timestamps, without listed tokens.
///
/// Source: openai/whisper `decoding.py`, `LogitFilter`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogitFilter {
    /// Text tokens that may follow. Every token from its end on is a timestamp.
    pub text: Range<u32>,
    /// Timestamps that may follow.
    pub timestamps: Range<u32>,
    /// Suppressed tokens: two ranges of the step's list of tokens.
    pub suppressed: [Range<u32>; 2],
}

impl LogitFilter {
    /// Every token of a vocabulary may follow.
    #[must_use]
    pub const fn none(vocab_size: u32) -> Self {
        Self { text: 0..vocab_size, timestamps: vocab_size..vocab_size, suppressed: [0..0, 0..0] }
    }

    /// Whether the ranges are those of a vocabulary and of a list of `n_suppressed` tokens.
    #[must_use]
    pub fn fits(&self, vocab_size: usize, n_suppressed: usize) -> bool {
        let Self { text, timestamps, suppressed } = self;
        let ends = [text.start, text.end, timestamps.start, timestamps.end];
        ends.is_sorted()
            && timestamps.end as usize <= vocab_size
            && suppressed.iter().all(|r| r.start <= r.end && r.end as usize <= n_suppressed)
    }
}

#[cfg(test)]
mod tests {
    use super::LogitFilter;

    #[test]
    fn ranges_outside_of_the_vocabulary_do_not_fit() {
        let filter = LogitFilter { text: 0..8, timestamps: 8..12, suppressed: [0..1, 1..3] };
        assert!(filter.fits(12, 3) && !filter.fits(11, 3) && !filter.fits(12, 2));
        assert!(!LogitFilter { text: 0..9, ..filter }.fits(12, 3));
    }
}
