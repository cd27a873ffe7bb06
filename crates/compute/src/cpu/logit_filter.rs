//! Logit filters: suppression of the columns that may not be chosen.

use super::log_sum_exp::{log_sum_exp, max};
use crate::op::LogitFilter;
use crate::simd::Isa;

impl LogitFilter {
    /// Sets the logits of suppressed columns to −∞, then those of the first range if `log_sum_exp(second) > max(first)`.
    /// `suppressed` is the step's list.
    ///
    /// # Panics
    /// If a range or a suppressed column is outside of what it indexes.
    pub fn apply(&self, isa: Isa, logits: &mut [f32], suppressed: &[u32]) {
        const SUPPRESSED: f32 = f32::NEG_INFINITY;
        let Self { kept, suppressed: lists } = self;
        let [first, second] = kept.each_ref().map(|r| r.start as usize..r.end as usize);
        logits[..first.start].fill(SUPPRESSED);
        logits[first.end..second.start].fill(SUPPRESSED);
        logits[second.end..].fill(SUPPRESSED);
        for list in lists {
            for &column in &suppressed[list.start as usize..list.end as usize] {
                logits[column as usize] = SUPPRESSED;
            }
        }
        if !first.is_empty() && !second.is_empty() {
            // Sums every column after the first range, so that the order of the sum does not depend on the second.
            let (first, second) = logits.split_at_mut(first.end);
            if log_sum_exp(isa, second) > max(isa, first) {
                first.fill(SUPPRESSED);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::op::LogitFilter;
    use crate::simd::Isa;

    /// Checks which of 12 columns are kept; columns of `likely` have a logit of 5, others of 0.
    #[track_caller]
    fn check(filter: &LogitFilter, likely: &[usize], expected: &[usize]) {
        let list = [7, 2, 3];
        assert!(filter.fits(12, list.len()));
        for isa in Isa::available() {
            let mut logits = [0.0; 12];
            likely.iter().for_each(|&column| logits[column] = 5.0);
            let before = logits;
            filter.apply(isa, &mut logits, &list);
            let is_kept = |&column: &usize| logits[column] > f32::NEG_INFINITY;
            let got: Vec<usize> = (0..12).filter(is_kept).collect();
            assert_eq!(got, expected, "{isa}");
            assert!(got.iter().all(|&column| logits[column] == before[column]), "{isa}");
        }
    }

    #[test]
    fn columns_in_the_ranges_and_in_no_list_are_kept() {
        let none = LogitFilter::none(12);
        check(&none, &[9], &(0..12).collect::<Vec<_>>());
        let filter = LogitFilter { kept: [1..8, 9..11], suppressed: [0..1, 1..3] };
        check(&filter, &[5], &[1, 4, 5, 6, 9, 10]);
        check(&LogitFilter { kept: [1..8, 12..12], ..filter.clone() }, &[5], &[1, 4, 5, 6]);
        check(&LogitFilter { kept: [8..8, 9..11], ..filter }, &[5], &[9, 10]);
    }

    #[test]
    fn the_second_range_wins_if_its_sum_exceeds_the_first() {
        let filter = LogitFilter { kept: [0..8, 8..12], suppressed: [0..0, 0..0] };
        // 4 e^0 > e^0
        check(&filter, &[], &[8, 9, 10, 11]);
        check(&filter, &[6], &(0..12).collect::<Vec<_>>());
        // A suppressed column does not count.
        let of_list = LogitFilter { suppressed: [1..2, 0..0], ..filter.clone() };
        check(&of_list, &[2], &[8, 9, 10, 11]);
        // One column as likely as the first range.
        let last = LogitFilter { kept: [0..8, 11..12], ..filter };
        check(&last, &[], &[0, 1, 2, 3, 4, 5, 6, 7, 11]);
    }
}
