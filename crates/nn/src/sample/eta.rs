//! Epsilon and eta sampling: cut-offs on the probability itself.

use super::candidates::Candidates;
use super::entropy::entropy;

/// Drops tokens of a probability below `epsilon`, but keeps `min_keep`.
///
/// Source: Hewitt, Manning, Liang 2022, "Truncation Sampling as Language Model Desmoothing", §3.
pub(super) fn apply_epsilon(candidates: &mut Candidates, epsilon: f32, min_keep: usize) {
    if epsilon > 0.0 {
        candidates.softmax();
        keep_probable(candidates, epsilon, min_keep);
    }
}

/// Drops tokens of a probability below `min(epsilon, √epsilon · e^−H)`, but keeps `min_keep`: the
/// flatter the distribution, the lower the bar.
///
/// Source: the same paper, §4.
pub(super) fn apply_eta(candidates: &mut Candidates, epsilon: f32, min_keep: usize) {
    if epsilon > 0.0 {
        let flatness = (-entropy(candidates.softmax())).exp() as f32;
        keep_probable(candidates, epsilon.min(epsilon.sqrt() * flatness), min_keep);
    }
}

fn keep_probable(candidates: &mut Candidates, min: f32, min_keep: usize) {
    let kept = candidates.as_slice().iter().filter(|c| c.p >= min).count();
    candidates.keep_top(kept.max(min_keep).max(1));
}

#[cfg(test)]
mod tests {
    use super::super::testing::{apply, check};

    const P: [f32; 4] = [0.1, 0.2, 0.3, 0.4];

    #[test]
    fn epsilon_is_a_fixed_bar() {
        check(&apply(&P, |c| super::apply_epsilon(c, 0.0, 0)), &[0.4, 0.3, 0.2, 0.1]);
        check(&apply(&P, |c| super::apply_epsilon(c, 0.25, 0)), &[0.4 / 0.7, 0.3 / 0.7]);
        check(&apply(&P, |c| super::apply_epsilon(c, 0.9, 0)), &[1.0]);
        check(&apply(&P, |c| super::apply_epsilon(c, 0.9, 2)), &[0.4 / 0.7, 0.3 / 0.7]);
    }

    #[test]
    fn eta_lowers_the_bar_by_the_entropy() {
        // H = 1.27985, e^−H = 0.27808: the bar of ε = 0.36 is min(0.36, 0.6 · 0.27808 = 0.167).
        check(&apply(&P, |c| super::apply_eta(c, 0.36, 0)), &[0.4 / 0.9, 0.3 / 0.9, 0.2 / 0.9]);
        check(&apply(&P, |c| super::apply_eta(c, 0.0, 0)), &[0.4, 0.3, 0.2, 0.1]);
    }
}
