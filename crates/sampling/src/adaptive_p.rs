//! Adaptive-p: keeps the average probability of drawn tokens near a target.

use crate::candidates::Candidates;

/// Sampler and state, an exponential moving average of the probabilities of drawn tokens.
///
/// ```text
/// aim    = clamp(2 * target - weighted_sum / total_weight, 0, 1)
/// d      = |p - aim| / WIDTH
/// logit' = PEAK_LOGIT - SHARPNESS * d^2 / (1 + d)
///
/// accept: weighted_sum = p + decay * weighted_sum;  total_weight = 1 + decay * total_weight
/// ```
///
/// Source: llama.cpp PR 17927 (`MrJackSpade`, `ddh0`). llama.cpp: `adaptive_p`.
#[derive(Debug, Clone)]
pub(super) struct AdaptiveP {
    target: f32,
    decay: f32,
    weighted_sum: f32,
    total_weight: f32,
    /// The drawn token and its probability, until it is accepted.
    pending: Option<(u32, f32)>,
}

/// Unit of the distance, a probability.
const WIDTH: f32 = 0.3;
/// Logit of a candidate at distance 0.
const PEAK_LOGIT: f32 = 5.0;
/// Decline of the logit: quadratic near the peak, linear far away.
const SHARPNESS: f32 = 10.0;

impl AdaptiveP {
    /// `target` is a probability, 0 to 1; the average is over about `1 / (1 − decay)` tokens.
    pub(super) fn new(target: f32, decay: f32) -> Self {
        let decay = decay.clamp(0.0, 0.99);
        let total_weight = 1.0 / (1.0 - decay);
        Self { target, decay, weighted_sum: target * total_weight, total_weight, pending: None }
    }

    /// Replaces every logit by a function of the distance between its probability and `aim`. `original` gets the
    /// probabilities before.
    pub(super) fn apply(&self, candidates: &mut Candidates, original: &mut Vec<f32>) {
        original.clear();
        original.extend(candidates.softmax().iter().map(|c| c.p));
        let aim = (2.0 * self.target - self.weighted_sum / self.total_weight).clamp(0.0, 1.0);
        candidates.reshape(|candidate| {
            if candidate.logit == f32::NEG_INFINITY {
                return f32::NEG_INFINITY;
            }
            let distance = ((candidate.p - aim) / WIDTH).abs();
            PEAK_LOGIT - SHARPNESS * distance * distance / (1.0 + distance)
        });
    }

    /// Records a draw; `p` is the probability of the token before [`Self::apply`].
    pub(super) fn record_draw(&mut self, token: u32, p: f32) {
        self.pending = Some((token, p));
    }

    /// Updates the average if `token` is the drawn one.
    pub(super) fn accept(&mut self, token: u32) {
        if let Some((drawn, p)) = self.pending.take()
            && drawn == token
        {
            self.weighted_sum = p + self.decay * self.weighted_sum;
            self.total_weight = 1.0 + self.decay * self.total_weight;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::AdaptiveP;
    use crate::testing::{apply, check};

    /// Softmax of 5 − 10 d² / (1 + d), d = |p − aim| / 0.3.
    fn expected(p: &[f32], aim: f32) -> Vec<f32> {
        let distance = |p: f32| ((p - aim) / 0.3).abs();
        let weight = |p: f32| (5.0 - 10.0 * distance(p).powi(2) / (1.0 + distance(p))).exp();
        let sum: f32 = p.iter().map(|&p| weight(p)).sum();
        let mut all: Vec<f32> = p.iter().map(|&p| weight(p) / sum).collect();
        all.sort_by(|a, b| b.total_cmp(a));
        all
    }

    #[test]
    fn starts_at_the_target_and_corrects_the_average() {
        let p = [0.1, 0.2, 0.3, 0.4];
        let mut adaptive = AdaptiveP::new(0.3, 0.5);
        check(&apply(&p, |c| adaptive.apply(c, &mut Vec::new())), &expected(&p, 0.3));
        adaptive.record_draw(3, 0.4);
        adaptive.accept(3);
        // Sum 0.4 + 0.5 · 0.6 = 0.7 over weight 1 + 0.5 · 2 = 2: aim 0.6 − 0.35 = 0.25.
        check(&apply(&p, |c| adaptive.apply(c, &mut Vec::new())), &expected(&p, 0.25));
        adaptive.record_draw(3, 0.4);
        adaptive.accept(1);
        check(&apply(&p, |c| adaptive.apply(c, &mut Vec::new())), &expected(&p, 0.25));
    }
}
