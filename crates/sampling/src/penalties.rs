//! Repetition, frequency and presence penalties over the last `last_n` tokens.

use std::collections::VecDeque;

use crate::candidates::Candidates;
use crate::token_values::TokenValues;

/// Penalizes each token that occurs `n > 0` times in the window:
///
/// ```text
/// logit' = logit / repeat            if logit > 0
///          logit * repeat            else
/// logit' -= n * frequency + presence
/// ```
///
/// Source: Keskar et al. 2019 (CTRL, §4.1) with llama.cpp's sign rule; frequency and presence are those of the OpenAI
/// API. llama.cpp: `penalties`.
#[derive(Debug, Clone)]
pub(super) struct Penalties {
    last_n: usize,
    repeat: f32,
    frequency: f32,
    presence: f32,
    /// The last `last_n` tokens.
    window: VecDeque<u32>,
}

impl Penalties {
    /// `None` if the settings are neutral.
    pub(super) fn new(last_n: usize, repeat: f32, frequency: f32, presence: f32) -> Option<Self> {
        if last_n == 0 || (repeat == 1.0 && frequency == 0.0 && presence == 0.0) {
            return None;
        }
        let window = VecDeque::with_capacity(last_n.min(1 << 16));
        Some(Self { last_n, repeat, frequency, presence, window })
    }

    pub(super) fn accept(&mut self, token: u32) {
        if self.window.len() == self.last_n {
            self.window.pop_front();
        }
        self.window.push_back(token);
    }

    pub(super) fn apply(&self, candidates: &mut Candidates, counts: &mut TokenValues) {
        counts.clear();
        self.window.iter().for_each(|&token| counts.update(token, |count| count + 1));
        candidates.adjust(counts.touched(), |token, logit| match counts.get(token) {
            0 => logit,
            count => {
                let repeated = if logit <= 0.0 { logit * self.repeat } else { logit / self.repeat };
                repeated - (count as f32 * self.frequency + self.presence)
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::{Candidates, Penalties, TokenValues};
    use crate::testing::{apply_with_values as apply, check};

    #[track_caller]
    fn penalized(past: &[u32], [repeat, frequency, presence]: [f32; 3], expected: &[f32]) {
        let mut penalties = Penalties::new(past.len(), repeat, frequency, presence).unwrap();
        past.iter().for_each(|&token| penalties.accept(token));
        check(
            &apply(&[0.2; 5], |candidates, values| penalties.apply(candidates, values)),
            expected,
        );
    }

    #[test]
    fn a_repetition_divides_positive_logits_and_multiplies_negative_ones() {
        let penalized = |logit: f32, repeat: f32| {
            let mut penalties = Penalties::new(1, repeat, 0.0, 0.0).unwrap();
            penalties.accept(0);
            let mut candidates = Candidates::new(1);
            candidates.load(&[logit]);
            penalties.apply(&mut candidates, &mut TokenValues::new(1));
            candidates.max_logit()
        };
        assert_eq!(
            [penalized(3.0, 2.0), penalized(-3.0, 2.0), penalized(0.0, 2.0)],
            [1.5, -6.0, 0.0]
        );
    }

    #[test]
    fn repetition_counts_once() {
        penalized(&[0], [50.0, 0.0, 0.0], &[0.25, 0.25, 0.25, 0.25, 0.0]);
        let two = [0.5, 0.5, 0.0, 0.0, 0.0];
        penalized(&[0, 1, 2], [50.0, 0.0, 0.0], &two);
        penalized(&[0, 1, 2, 0, 0], [50.0, 0.0, 0.0], &two);
    }

    #[test]
    fn frequency_counts_each_time_and_presence_once() {
        let rest = 0.249_997;
        penalized(&[0], [1.0, 5.0, 5.0], &[rest, rest, rest, rest, 0.000_011]);
        let (seen, rest) = (0.000_023, 0.499_966);
        penalized(&[0, 1, 2], [1.0, 5.0, 5.0], &[rest, rest, seen, seen, seen]);
    }

    #[test]
    fn tokens_leave_the_window() {
        let mut penalties = Penalties::new(2, 1.0, 1.0, 0.0).unwrap();
        for token in [0, 0, 1, 2] {
            penalties.accept(token);
        }
        let p = 1.0 / (1.0 + 2.0 * (-1f32).exp());
        let q = p * (-1f32).exp();
        check(&apply(&[1.0 / 3.0; 3], |c, values| penalties.apply(c, values)), &[p, q, q]);
    }

    #[test]
    fn the_list_form_is_penalized_like_the_dense_one() {
        let probabilities = [0.1, 0.2, 0.3, 0.25, 0.15];
        let mut penalties = Penalties::new(8, 1.3, 0.2, 0.1).unwrap();
        [2, 2, 4, 0].iter().for_each(|&token| penalties.accept(token));
        let dense = apply(&probabilities, |c, values| penalties.apply(c, values));
        let list = apply(&probabilities, |c, values| {
            c.sort_prefix(3);
            penalties.apply(c, values);
        });
        assert_eq!(dense, list);
    }

    #[test]
    fn neutral_settings_need_no_sampler() {
        assert!(Penalties::new(64, 1.0, 0.0, 0.0).is_none());
        assert!(Penalties::new(0, 1.1, 0.0, 0.0).is_none());
    }
}
