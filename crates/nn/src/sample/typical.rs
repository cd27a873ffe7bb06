//! Locally typical sampling: tokens whose surprise is near the expected one.

use super::candidates::Candidates;
use super::entropy::entropy;

/// Keeps the tokens whose `−ln p` is closest to the entropy until their probabilities sum to more
/// than `p`, and not fewer than `min_keep`.
///
/// Impossible tokens come last (llama.cpp's entropy becomes NaN with one).
///
/// Source: Meister et al. 2022, "Locally Typical Sampling", §4.
pub(super) fn apply(candidates: &mut Candidates, p: f32, min_keep: usize) {
    if p >= 1.0 {
        return;
    }
    let entropy = entropy(candidates.softmax()) as f32;
    candidates.keep_by_score(
        |candidate| (-candidate.p.ln() - entropy).abs(),
        |n, mass| mass > f64::from(p) && n >= min_keep,
    );
}

#[cfg(test)]
mod tests {
    use super::super::testing::{apply, check};

    #[test]
    fn keeps_the_typical_ones() {
        let typical = |probabilities: &[f32]| apply(probabilities, |c| super::apply(c, 0.5, 0));
        check(&typical(&[0.97, 0.01, 0.01, 0.01]), &[1.0]);
        // The most probable token is the least typical here.
        check(&typical(&[0.4, 0.2, 0.2, 0.2]), &[1.0 / 3.0; 3]);
    }

    #[test]
    fn impossible_tokens_are_kept_last() {
        check(&apply(&[0.0, 0.5, 0.5], |c| super::apply(c, 0.6, 0)), &[0.5, 0.5]);
    }
}
