//! Epsilon and eta sampling: cut-offs of the probability.

use crate::candidates::Candidates;
use crate::entropy::entropy;

/// Epsilon sampling: keeps tokens with `p >= epsilon`, but at least `min_keep`.
///
/// Source: Hewitt, Manning, Liang 2022, "Truncation Sampling as Language Model Desmoothing", §3. Not in llama.cpp;
/// `epsilon_cutoff` in transformers.
pub(super) fn apply_epsilon(candidates: &mut Candidates, epsilon: f32, min_keep: usize) {
    if epsilon > 0.0 {
        candidates.softmax();
        keep_probable(candidates, epsilon, min_keep);
    }
}

/// Eta sampling: keeps tokens with `p >= min(epsilon, √epsilon · e^−H)`, `H` the entropy, but at least `min_keep`.
///
/// Source: the same paper, §4. Not in llama.cpp; `eta_cutoff` in transformers.
pub(super) fn apply_eta(candidates: &mut Candidates, epsilon: f32, min_keep: usize) {
    if epsilon > 0.0 {
        let exp_neg_entropy = (-entropy(candidates.softmax())).exp() as f32;
        keep_probable(candidates, epsilon.min(epsilon.sqrt() * exp_neg_entropy), min_keep);
    }
}

fn keep_probable(candidates: &mut Candidates, min: f32, min_keep: usize) {
    let kept = candidates.as_slice().iter().filter(|c| c.p >= min).count();
    candidates.keep_top_k(kept.max(min_keep).max(1));
}

#[cfg(test)]
mod tests {
    use crate::testing::{apply, check};

    const P: [f32; 4] = [0.1, 0.2, 0.3, 0.4];

    #[test]
    fn epsilon_is_a_fixed_threshold() {
        check(&apply(&P, |c| super::apply_epsilon(c, 0.0, 0)), &[0.4, 0.3, 0.2, 0.1]);
        check(&apply(&P, |c| super::apply_epsilon(c, 0.25, 0)), &[0.4 / 0.7, 0.3 / 0.7]);
        check(&apply(&P, |c| super::apply_epsilon(c, 0.9, 0)), &[1.0]);
        check(&apply(&P, |c| super::apply_epsilon(c, 0.9, 2)), &[0.4 / 0.7, 0.3 / 0.7]);
    }

    #[test]
    fn eta_lowers_the_threshold_by_the_entropy() {
        // H = 1.27985, e^−H = 0.27808: the threshold of ε = 0.36 is min(0.36, 0.6 · 0.27808 = 0.167).
        check(&apply(&P, |c| super::apply_eta(c, 0.36, 0)), &[0.4 / 0.9, 0.3 / 0.9, 0.2 / 0.9]);
        check(&apply(&P, |c| super::apply_eta(c, 0.0, 0)), &[0.4, 0.3, 0.2, 0.1]);
    }
}
