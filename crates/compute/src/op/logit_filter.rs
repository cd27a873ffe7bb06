//! Logit filters.

use std::ops::Range;

/// Filter of a row of logits: the columns of two ranges are kept, without listed columns. If the probabilities of the second
/// range sum to more than the largest of the first, the first is suppressed as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogitFilter {
    /// Kept columns, the first range before the second. Every column from the end of the first on counts as one of the
    /// second, a suppressed one with a probability of zero.
    pub kept: [Range<u32>; 2],
    /// Suppressed columns: two ranges of the step's list.
    pub suppressed: [Range<u32>; 2],
}

impl LogitFilter {
    /// Keeps all of `n_cols` columns.
    #[must_use]
    pub const fn none(n_cols: u32) -> Self {
        Self { kept: [0..n_cols, n_cols..n_cols], suppressed: [0..0, 0..0] }
    }

    /// Whether the ranges are those of `n_cols` columns and of a list of `n_suppressed`.
    #[must_use]
    pub fn fits(&self, n_cols: usize, n_suppressed: usize) -> bool {
        let Self { kept: [first, second], suppressed } = self;
        let ends = [first.start, first.end, second.start, second.end];
        ends.is_sorted()
            && second.end as usize <= n_cols
            && suppressed.iter().all(|r| r.start <= r.end && r.end as usize <= n_suppressed)
    }
}

#[cfg(test)]
mod tests {
    use super::LogitFilter;

    #[test]
    fn ranges_outside_of_the_columns_do_not_fit() {
        let filter = LogitFilter { kept: [0..8, 8..12], suppressed: [0..1, 1..3] };
        assert!(filter.fits(12, 3) && !filter.fits(11, 3) && !filter.fits(12, 2));
        assert!(!LogitFilter { kept: [0..9, 8..12], ..filter }.fits(12, 3));
    }
}
