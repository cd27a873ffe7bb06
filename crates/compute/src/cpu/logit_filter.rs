//! Logit filters: suppression of the tokens that may not follow.

use super::log_sum_exp::{log_sum_exp, max};
use crate::op::LogitFilter;
use crate::simd::Isa;

impl LogitFilter {
    /// Sets the logits of a row that may not follow to −∞, then those of all text if `log_sum_exp(timestamps) > max(text)`.
    /// `suppressed` is the step's list.
    ///
    /// # Panics
    /// If a range or a suppressed token is outside of what it indexes.
    pub fn apply(&self, isa: Isa, logits: &mut [f32], suppressed: &[u32]) {
        const SUPPRESSED: f32 = f32::NEG_INFINITY;
        let Self { text, timestamps, suppressed: lists } = self;
        let [text, timestamps] = [text, timestamps].map(|r| r.start as usize..r.end as usize);
        logits[..text.start].fill(SUPPRESSED);
        logits[text.end..timestamps.start].fill(SUPPRESSED);
        logits[timestamps.end..].fill(SUPPRESSED);
        for list in lists {
            for &token in &suppressed[list.start as usize..list.end as usize] {
                logits[token as usize] = SUPPRESSED;
            }
        }
        if !text.is_empty() && !timestamps.is_empty() {
            // Of all timestamps, the suppressed ones included: the order of the sum does not depend on the range.
            let (text, timestamps) = logits.split_at_mut(text.end);
            if log_sum_exp(isa, timestamps) > max(isa, text) {
                text.fill(SUPPRESSED);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::op::LogitFilter;
    use crate::simd::Isa;

    /// Tokens of a vocabulary of 8 text tokens and 4 timestamps that may follow; tokens of `likely` have a logit of 5,
    /// others of 0.
    #[track_caller]
    fn check(filter: &LogitFilter, likely: &[usize], expected: &[usize]) {
        let list = [7, 2, 3];
        assert!(filter.fits(12, list.len()));
        for isa in Isa::available() {
            let mut logits = [0.0; 12];
            likely.iter().for_each(|&token| logits[token] = 5.0);
            let before = logits;
            filter.apply(isa, &mut logits, &list);
            let may_follow = |&token: &usize| logits[token] > f32::NEG_INFINITY;
            let got: Vec<usize> = (0..12).filter(may_follow).collect();
            assert_eq!(got, expected, "{isa}");
            assert!(got.iter().all(|&token| logits[token] == before[token]), "{isa}");
        }
    }

    #[test]
    fn tokens_in_the_ranges_and_in_no_list_follow() {
        let none = LogitFilter::none(12);
        check(&none, &[9], &(0..12).collect::<Vec<_>>());
        let filter = LogitFilter { text: 1..8, timestamps: 9..11, suppressed: [0..1, 1..3] };
        check(&filter, &[5], &[1, 4, 5, 6, 9, 10]);
        check(&LogitFilter { timestamps: 12..12, ..filter.clone() }, &[5], &[1, 4, 5, 6]);
        check(&LogitFilter { text: 8..8, ..filter }, &[5], &[9, 10]);
    }

    #[test]
    fn timestamps_win_if_their_sum_exceeds_all_text() {
        let filter = LogitFilter { text: 0..8, timestamps: 8..12, suppressed: [0..0, 0..0] };
        // 4 e^0 > e^0
        check(&filter, &[], &[8, 9, 10, 11]);
        check(&filter, &[6], &(0..12).collect::<Vec<_>>());
        // A suppressed token does not count.
        let of_list = LogitFilter { suppressed: [1..2, 0..0], ..filter.clone() };
        check(&of_list, &[2], &[8, 9, 10, 11]);
        // One timestamp as likely as the text.
        let last = LogitFilter { timestamps: 11..12, ..filter };
        check(&last, &[], &[0, 1, 2, 3, 4, 5, 6, 7, 11]);
    }
}
