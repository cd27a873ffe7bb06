//! Top-nσ: tokens within `n` standard deviations of the maximum logit.

use crate::candidates::Candidates;

/// Sets logits below `max − n · σ` to −∞, σ the standard deviation of the logits above −∞; `n` of 0 or less keeps all.
///
/// Source: Tang et al. 2024, "Top-nσ: Not All Logits Are You Need", algorithm 1. llama.cpp: `top_n_sigma`.
pub(super) fn apply(candidates: &mut Candidates, n: f32) {
    if n <= 0.0 || candidates.len() <= 1 {
        return;
    }
    let possible = || candidates.logits().filter(|&l| l != f32::NEG_INFINITY).map(f64::from);
    let (count, sum) = possible().fold((0u32, 0.0), |(count, sum), l| (count + 1, sum + l));
    if count == 0 {
        return;
    }
    let mean = sum / f64::from(count);
    let variance = possible().map(|l| (l - mean) * (l - mean)).sum::<f64>() / f64::from(count);
    let min = candidates.max_logit() - n * variance.sqrt() as f32;
    candidates.map_logits(|logit| if logit < min { f32::NEG_INFINITY } else { logit });
}

#[cfg(test)]
mod tests {
    use crate::testing::{apply, check};

    #[test]
    fn keeps_the_logits_near_the_maximum() {
        let sigma = |n| apply(&[0.1, 0.2, 0.3, 0.4], |c| super::apply(c, n));
        check(&sigma(1.0), &[0.571_429, 0.428_571]);
        check(&sigma(0.0), &[0.4, 0.3, 0.2, 0.1]);
        check(&sigma(3.0), &[0.4, 0.3, 0.2, 0.1]);
    }

    #[test]
    fn impossible_logits_do_not_widen_sigma() {
        // ln p of the possible ones: mean −1.157, σ 0.239: ln 0.25 = −1.386 lies below max − σ.
        let kept = apply(&[0.0, 0.25, 0.35, 0.4], |c| super::apply(c, 1.0));
        check(&kept, &[0.4 / 0.75, 0.35 / 0.75]);
    }
}
