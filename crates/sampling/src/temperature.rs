//! Temperature, fixed or dynamic.

use crate::candidates::Candidates;
use crate::entropy::entropy;

/// Temperature scaling of the logits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Temperature {
    /// Divisor of the logits; 0 or less keeps the argmax only.
    pub(super) temperature: f32,
    /// Dynamic temperature: half-width of its range; 0 is a fixed temperature.
    pub(super) range: f32,
    /// Dynamic temperature: exponent of the normalized entropy.
    pub(super) exponent: f32,
}

impl Temperature {
    /// `logit' = logit / t`. With a range, `t' = lo + (hi − lo) · (H / ln n)^exponent`, `lo = max(0, t − range)`,
    /// `hi = t + range`, `H` the entropy of the `n` candidates.
    ///
    /// Source: Ackley, Hinton, Sejnowski 1985; the dynamic form is llama.cpp PR 4972 (kalomaze).
    /// llama.cpp: `temperature`.
    pub(super) fn apply(self, candidates: &mut Candidates) {
        if self.range <= 0.0 {
            return scale(candidates, self.temperature);
        }
        let n = candidates.len();
        if n <= 1 {
            return;
        }
        let normalized_entropy = entropy(candidates.softmax()) / (n as f64).ln();
        let low = (self.temperature - self.range).max(0.0);
        let high = self.temperature + self.range;
        scale(candidates, low + (high - low) * (normalized_entropy as f32).powf(self.exponent));
    }

    /// Whether this keeps the argmax only.
    pub(super) fn is_greedy(self) -> bool {
        self.temperature <= 0.0 && self.range <= 0.0
    }

    /// Whether this changes nothing.
    pub(super) fn is_neutral(self) -> bool {
        self.temperature == 1.0 && self.range <= 0.0
    }
}

fn scale(candidates: &mut Candidates, temperature: f32) {
    if temperature <= 0.0 {
        candidates.keep_max();
    } else {
        // An overflow to +∞ would make the softmax NaN.
        candidates.map_logits(|logit| (logit / temperature).min(f32::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::Temperature;
    use crate::testing::{apply, check};

    fn at(temperature: f32, range: f32, exponent: f32) -> Vec<f32> {
        let scale = Temperature { temperature, range, exponent };
        apply(&[0.1, 0.2, 0.3, 0.4], |c| scale.apply(c))
    }

    #[test]
    fn one_changes_nothing_and_zero_is_greedy() {
        check(&at(1.0, 0.0, 1.0), &[0.4, 0.3, 0.2, 0.1]);
        check(&at(0.0, 0.0, 1.0), &[1.0]);
        check(&at(-1.0, 0.0, 1.0), &[1.0]);
    }

    #[test]
    fn half_squares_the_probabilities() {
        check(&at(0.5, 0.0, 1.0), &[0.16 / 0.3, 0.09 / 0.3, 0.04 / 0.3, 0.01 / 0.3]);
    }

    #[test]
    fn the_entropy_chooses_within_the_range() {
        // H = 1.2798542 nats of ln 4: 0.5 + 1 · (H / ln 4)² = 1.3523.
        let t = 0.5 + (1.279_854_2f32 / 4f32.ln()).powi(2);
        let weights: Vec<f32> = [0.4f32, 0.3, 0.2, 0.1].map(|p| p.powf(1.0 / t)).to_vec();
        let sum: f32 = weights.iter().sum();
        let expected: Vec<f32> = weights.iter().map(|w| w / sum).collect();
        check(&at(1.0, 0.5, 2.0), &expected);
    }

    #[test]
    fn the_argmax_of_equal_logits_is_the_lowest_token() {
        let greedy = Temperature { temperature: 0.0, range: 0.0, exponent: 1.0 };
        for sorted in [0, 4] {
            let mut candidates = super::Candidates::new(4);
            candidates.load(&[0.0, 3.0, 3.0, 1.0]);
            if sorted > 0 {
                candidates.sort_prefix(sorted);
            }
            greedy.apply(&mut candidates);
            assert_eq!(candidates.as_slice()[0].token, 1);
        }
    }

    #[test]
    fn a_range_below_zero_ends_at_zero() {
        // From 0 to 0.8 by the normalized entropy.
        let t = 0.8 * 1.279_854_2f32 / 4f32.ln();
        let weights: Vec<f32> = [0.4f32, 0.3, 0.2, 0.1].map(|p| p.powf(1.0 / t)).to_vec();
        let sum: f32 = weights.iter().sum();
        let expected: Vec<f32> = weights.iter().map(|w| w / sum).collect();
        check(&at(0.3, 0.5, 1.0), &expected);
    }

    #[test]
    fn a_single_candidate_has_no_entropy() {
        let scale = Temperature { temperature: 1.0, range: 0.5, exponent: 1.0 };
        check(&apply(&[1.0], |c| scale.apply(c)), &[1.0]);
    }
}
