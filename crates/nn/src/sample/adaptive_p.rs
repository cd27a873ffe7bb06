//! Adaptive-p: prefers tokens whose probability is near a target, kept on average.

use super::candidates::Candidates;

/// State: a moving average of the probabilities of the chosen tokens.
///
/// Source: llama.cpp PR 17927 (`MrJackSpade`, `ddh0`).
#[derive(Debug, Clone)]
pub(super) struct AdaptiveP {
    target: f32,
    decay: f32,
    weighted_sum: f32,
    total_weight: f32,
    /// Each candidate's probability before it was reshaped.
    original: Vec<f32>,
    pending: Option<(u32, f32)>,
}

const WIDTH: f32 = 0.3;
const PEAK_LOGIT: f32 = 5.0;
const SHARPNESS: f32 = 10.0;

impl AdaptiveP {
    /// Aims at probabilities of `target` (0 to 1) averaged over about `1 / (1 − decay)` tokens.
    pub(super) fn new(target: f32, decay: f32) -> Self {
        let mut new = Self {
            target,
            decay: decay.clamp(0.0, 0.99),
            weighted_sum: 0.0,
            total_weight: 0.0,
            original: Vec::new(),
            pending: None,
        };
        new.reset();
        new
    }

    /// Gives each candidate a logit that falls with the distance of its probability from what
    /// brings the average back to the target: quadratic near it, linear far away.
    pub(super) fn apply(&mut self, candidates: &mut Candidates) {
        self.original.clear();
        self.original.extend(candidates.softmax().iter().map(|c| c.p));
        let aim = (2.0 * self.target - self.weighted_sum / self.total_weight).clamp(0.0, 1.0);
        candidates.reshape(|candidate| {
            if candidate.logit == f32::NEG_INFINITY {
                return f32::NEG_INFINITY;
            }
            let distance = ((candidate.p - aim) / WIDTH).abs();
            PEAK_LOGIT - SHARPNESS * distance * distance / (1.0 + distance)
        });
    }

    /// Notes the draw of the candidate at `index` of the list that [`Self::apply`] saw.
    pub(super) fn drawn(&mut self, token: u32, index: usize) {
        self.pending = Some((token, self.original[index]));
    }

    /// Moves the average if the token is the one drawn.
    pub(super) fn accept(&mut self, token: u32) {
        if let Some((drawn, p)) = self.pending.take()
            && drawn == token
        {
            self.weighted_sum = p + self.decay * self.weighted_sum;
            self.total_weight = 1.0 + self.decay * self.total_weight;
        }
    }

    pub(super) fn reset(&mut self) {
        self.total_weight = 1.0 / (1.0 - self.decay);
        self.weighted_sum = self.target * self.total_weight;
        self.pending = None;
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{apply, check};
    use super::AdaptiveP;

    /// Softmax of 5 − 10 d² / (1 + d), d the distance from `aim` in widths.
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
        check(&apply(&p, |c| adaptive.apply(c)), &expected(&p, 0.3));
        adaptive.drawn(3, 3);
        adaptive.accept(3);
        // Sum 0.4 + 0.5 · 0.6 = 0.7 over weight 1 + 0.5 · 2 = 2: aim 0.6 − 0.35 = 0.25.
        check(&apply(&p, |c| adaptive.apply(c)), &expected(&p, 0.25));
        adaptive.drawn(3, 3);
        adaptive.accept(1);
        check(&apply(&p, |c| adaptive.apply(c)), &expected(&p, 0.25));
        adaptive.reset();
        check(&apply(&p, |c| adaptive.apply(c)), &expected(&p, 0.3));
    }
}
