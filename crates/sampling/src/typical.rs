//! Locally typical sampling: tokens whose surprise is near the entropy.

use crate::candidates::Candidates;
use crate::entropy::entropy;

/// Keeps the shortest prefix of the tokens by ascending `|−ln p_i − H|` with `Σ p_i > p`, but at least `min_keep`, `H` the
/// entropy; `p` of 1 keeps all.
///
/// Tokens with `p_i = 0` come last (in llama.cpp they make the entropy NaN).
///
/// Source: Meister et al. 2022, "Locally Typical Sampling", §4. llama.cpp: `typ_p`.
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
    use crate::testing::{apply, check};

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

    #[test]
    fn a_mass_equal_to_p_does_not_end_the_prefix() {
        let kept = |p, min_keep| apply(&[0.25; 4], |c| super::apply(c, p, min_keep)).len();
        assert_eq!([0.0, 0.25, 0.5, 0.74, 0.75, 1.0].map(|p| kept(p, 0)), [1, 2, 3, 3, 4, 4]);
        assert_eq!([kept(0.0, 1), kept(0.0, 3), kept(0.0, 9)], [1, 3, 4]);
    }
}
