//! Min-p: a threshold relative to the most probable token.

use crate::candidates::Candidates;

/// Keeps tokens with `p_i >= p · max_j p_j`, but at least `min_keep`; `p` of 0 keeps all.
///
/// In logits: `logit_i >= max_logit + ln p`, so no softmax is needed.
///
/// Source: Nguyen et al. 2024, "Turning Up the Heat: Min-p Sampling", §3; llama.cpp PR 3841. llama.cpp: `min_p`.
pub(super) fn apply(candidates: &mut Candidates, p: f32, min_keep: usize) {
    if p > 0.0 {
        candidates.keep_above(candidates.max_logit() + p.ln(), min_keep);
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{apply, check};

    #[test]
    fn keeps_tokens_above_the_threshold() {
        let min = |p, min_keep| apply(&[0.1, 0.2, 0.3, 0.4], |c| super::apply(c, p, min_keep));
        check(&min(0.0, 0), &[0.4, 0.3, 0.2, 0.1]);
        check(&min(0.24, 0), &[0.4, 0.3, 0.2, 0.1]);
        check(&min(0.26, 0), &[0.4 / 0.9, 0.3 / 0.9, 0.2 / 0.9]);
        check(&min(0.49, 0), &[0.4 / 0.9, 0.3 / 0.9, 0.2 / 0.9]);
        check(&min(0.51, 0), &[0.4 / 0.7, 0.3 / 0.7]);
        check(&min(0.74, 0), &[0.4 / 0.7, 0.3 / 0.7]);
        check(&min(0.76, 0), &[1.0]);
        check(&min(1.0, 0), &[1.0]);
        check(&min(0.76, 3), &[0.4 / 0.9, 0.3 / 0.9, 0.2 / 0.9]);
    }

    #[test]
    fn a_sorted_list_stays_sorted() {
        let kept = apply(&[0.1, 0.2, 0.3, 0.4], |c| {
            c.keep_top_k(3);
            super::apply(c, 0.6, 0);
        });
        check(&kept, &[0.4 / 0.7, 0.3 / 0.7]);
    }
}
