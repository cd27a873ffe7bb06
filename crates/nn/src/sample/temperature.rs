//! Temperature, fixed or from the entropy.

use super::candidates::Candidates;
use super::entropy::entropy;

/// How logits are scaled before the draw.
#[derive(Debug, Clone, Copy)]
pub(super) struct Temperature {
    /// The divisor; at 0 or below only the greatest logit is kept.
    pub(super) temperature: f32,
    /// Half the width of the range that the entropy chooses from; 0 leaves it fixed.
    pub(super) range: f32,
    /// How the entropy maps to that range.
    pub(super) exponent: f32,
}

impl Temperature {
    /// Divides the logits by the temperature.
    ///
    /// With a range: by `lo + (hi − lo) · (H / ln n)^exponent`, `lo = max(0, t − range)`,
    /// `hi = t + range`, `H` the entropy of the `n` candidates.
    ///
    /// Source: Ackley, Hinton, Sejnowski 1985; the dynamic form is llama.cpp PR 4972 (kalomaze).
    pub(super) fn apply(self, candidates: &mut Candidates) {
        if self.range <= 0.0 {
            return scale(candidates, self.temperature);
        }
        let n = candidates.len();
        if n <= 1 {
            return;
        }
        let evenness = entropy(candidates.softmax()) / (n as f64).ln();
        let low = (self.temperature - self.range).max(0.0);
        let high = self.temperature + self.range;
        scale(candidates, low + (high - low) * (evenness as f32).powf(self.exponent));
    }

    /// Whether this always keeps the greatest logit alone.
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
        candidates.keep_greatest();
    } else {
        // A quotient may overflow; the greatest finite value keeps the softmax defined.
        candidates.map_logits(|logit| (logit / temperature).min(f32::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{apply, check};
    use super::Temperature;

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
    fn the_lowest_of_equal_tokens_is_greatest() {
        let greedy = Temperature { temperature: 0.0, range: 0.0, exponent: 1.0 };
        for sorted in [0, 4] {
            let mut candidates = super::Candidates::new(4, 0);
            candidates.load(&[0.0, 3.0, 3.0, 1.0]);
            if sorted > 0 {
                candidates.sort_prefix(sorted);
            }
            greedy.apply(&mut candidates);
            assert_eq!(candidates.as_slice()[0].token, 1);
        }
    }
}
