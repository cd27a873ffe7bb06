//! DRY ("don't repeat yourself"): penalizes tokens that would extend a repeated sequence.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::breakers::DryBreakers;
use crate::candidates::Candidates;
use crate::options::SamplingOptions;
use crate::token_values::TokenValues;

/// `logit[t] −= multiplier · base^(n − allowed_length)` for each token `t` that would extend a repetition: the last
/// `n ≥ allowed_length` tokens of the context occur earlier in it, followed by `t`. Repetitions do not cross a breaker.
///
/// ```text
/// context   … a b c [t] … a b c |        n = 3: "a b c" is repeated, t is penalized
/// reversed  c b a … [t] c b a …          Z-function: matches[k] = common prefix of r and r[k..]
///           0          k-1 k             t = r[k - 1], n = matches[k]
/// ```
///
/// Source: text-generation-webui PR 5677 (p-e-w); koboldcpp PR 982 (pi6am), as in llama.cpp. Z-algorithm: Gusfield 1997,
/// §1.4. llama.cpp: `dry`.
#[derive(Debug, Clone)]
pub(super) struct Dry {
    multiplier: f32,
    base: f32,
    allowed_length: usize,
    last_n: usize,
    breakers: Arc<DryBreakers>,
    window: VecDeque<u32>,
}

/// Memory of [`Dry::apply`].
#[derive(Debug, Default)]
pub(super) struct DryScratch {
    /// The window reversed, latest token first.
    reversed: Vec<u32>,
    /// Z-function of `reversed`.
    matches: Vec<usize>,
}

impl Dry {
    /// `None` if the options disable DRY.
    pub(super) fn new(options: &SamplingOptions, breakers: Arc<DryBreakers>) -> Option<Self> {
        if !options.uses_dry() {
            return None;
        }
        let last_n = options.dry_penalty_last_n;
        Some(Self {
            multiplier: options.dry_multiplier,
            base: options.dry_base,
            allowed_length: options.dry_allowed_length,
            last_n,
            breakers,
            window: VecDeque::with_capacity(last_n.min(1 << 16)),
        })
    }

    pub(super) fn accept(&mut self, token: u32) {
        if self.window.len() == self.last_n {
            self.window.pop_front();
        }
        self.window.push_back(token);
    }

    pub(super) fn apply(
        &self,
        candidates: &mut Candidates,
        extends: &mut TokenValues,
        scratch: &mut DryScratch,
    ) {
        self.find_extensions(extends, scratch);
        let max_exponent = if self.base > 1.000_001 {
            // Largest exponent for which `base^exponent` is a finite f32.
            (f32::MAX.ln() / self.base.ln()) as usize
        } else {
            0
        };
        candidates.adjust(extends.touched(), |token, logit| {
            let longest = match extends.get(token) {
                0 => return logit,
                extends => extends as usize - 1,
            };
            let mut exponent = longest - self.allowed_length;
            if max_exponent > 0 {
                exponent = exponent.min(max_exponent);
            }
            logit - (f64::from(self.multiplier) * f64::from(self.base).powi(exponent as i32)) as f32
        });
    }

    /// Sets `extends` by token to 1 + length of the longest repetition that the token would extend; 0 if there is none.
    fn find_extensions(&self, extends: &mut TokenValues, scratch: &mut DryScratch) {
        extends.clear();
        if self.window.len() <= self.allowed_length {
            return;
        }
        let DryScratch { reversed, matches } = scratch;
        reversed.clear();
        reversed.reserve(self.window.capacity());
        reversed.extend(self.window.iter().rev());
        let limit = self.tokens_since_breaker(reversed);
        if limit < self.allowed_length {
            return;
        }
        matches.reserve(reversed.capacity());
        prefix_matches(reversed, matches);
        for k in 1..reversed.len() {
            let length = matches[k].min(limit);
            let next = reversed[k - 1];
            if length < self.allowed_length || self.breakers.is_breaker(next) {
                continue;
            }
            extends.update(next, |longest| longest.max(length as u32 + 1));
        }
    }

    /// Number of tokens after the last breaker.
    fn tokens_since_breaker(&self, reversed: &[u32]) -> usize {
        for (i, &head) in reversed.iter().enumerate() {
            let follows = |offset: usize, token: u32| {
                i.checked_sub(offset + 1).is_some_and(|at| reversed[at] == token)
            };
            if let Some(tail) = self.breakers.longest_match(head, follows) {
                return i - tail;
            }
        }
        reversed.len()
    }
}

/// Z-function: `matches[k]` = length of the longest common prefix of `tokens` and `tokens[k..]`, for `k ≥ 1`.
fn prefix_matches(tokens: &[u32], matches: &mut Vec<usize>) {
    let n = tokens.len();
    matches.clear();
    matches.resize(n, 0);
    // `tokens[start..end]` is the match with the largest end so far.
    let (mut start, mut end) = (0, 0);
    for k in 1..n {
        let mut length = if k < end { matches[k - start].min(end - k) } else { 0 };
        while k + length < n && tokens[length] == tokens[k + length] {
            length += 1;
        }
        matches[k] = length;
        if k + length > end {
            (start, end) = (k, k + length);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Dry, DryBreakers, DryScratch, SamplingOptions, prefix_matches};
    use crate::Rng;
    use crate::testing::{apply_with_values, check};
    use crate::token_values::TokenValues;

    fn dry(
        [multiplier, base]: [f32; 2],
        [allowed_length, last_n]: [usize; 2],
        breakers: &[Vec<u32>],
    ) -> Dry {
        let options = SamplingOptions {
            dry_multiplier: multiplier,
            dry_base: base,
            dry_allowed_length: allowed_length,
            dry_penalty_last_n: last_n,
            ..SamplingOptions::default()
        };
        Dry::new(&options, DryBreakers::from_tokens(breakers).into()).unwrap()
    }

    /// Probabilities of `n` tokens that were equally probable, in descending order.
    fn apply(dry: &Dry, n: usize) -> Vec<f32> {
        let mut scratch = DryScratch::default();
        apply_with_values(&vec![1.0 / n as f32; n], |candidates, values| {
            dry.apply(candidates, values, &mut scratch);
        })
    }

    #[track_caller]
    fn penalized(mut dry: Dry, past: &[u32], expected: &[f32]) {
        past.iter().for_each(|&token| dry.accept(token));
        // Without penalties all tokens are equally probable.
        let n = past.iter().max().map_or(0, |&token| token as usize + 1).max(expected.len());
        check(&apply(&dry, n), expected);
    }

    #[test]
    fn penalizes_what_would_extend_a_repetition() {
        penalized(dry([1.0, 1.1], [2, 4], &[]), &[0, 1], &[0.25; 4]);
        let (p, q) = (0.296_923, 0.109_232);
        penalized(dry([1.0, 1.1], [2, 5], &[]), &[0, 1, 2, 0, 1], &[p, p, p, q]);
        let (p, q) = (0.241_818, 0.032_727);
        penalized(dry([2.0, 1.1], [2, 5], &[]), &[0, 1, 2, 0, 1], &[p, p, p, p, q]);
    }

    #[test]
    fn short_repetitions_are_allowed() {
        penalized(dry([1.0, 1.1], [4, 7], &[]), &[0, 1, 2, 3, 4, 0, 1], &[0.2; 5]);
    }

    #[test]
    fn breakers_end_a_sequence_and_are_not_penalized() {
        // Two tokens follow the breaker 3, as many as are allowed; without it three would match.
        let past = [5, 0, 1, 2, 4, 5, 3, 0, 1];
        let mut with = dry([1.0, 2.0], [2, 9], &[vec![3]]);
        past.iter().for_each(|&token| with.accept(token));
        let mut extends = TokenValues::new(6);
        with.find_extensions(&mut extends, &mut DryScratch::default());
        assert_eq!((extends.touched(), extends.get(2)), (&[2][..], 3));
        // The token after the repetition is itself a breaker.
        penalized(dry([1.0, 1.1], [2, 6], &[vec![3]]), &[0, 1, 3, 4, 0, 1], &[0.2; 5]);
        // A breaker within the repetition leaves one token.
        penalized(dry([1.0, 1.1], [2, 6], &[vec![0]]), &[0, 1, 2, 0, 1], &[1.0 / 3.0; 3]);
        // A breaker of two tokens.
        penalized(dry([1.0, 1.1], [2, 6], &[vec![0, 1]]), &[0, 1, 2, 0, 1], &[1.0 / 3.0; 3]);
    }

    #[test]
    fn a_long_repetition_does_not_overflow() {
        let mut dry = dry([1.0, 1.75], [2, 4000], &[]);
        (0..4000).for_each(|_| dry.accept(0));
        check(&apply(&dry, 2), &[1.0]);
    }

    #[test]
    fn matches_are_those_of_the_definition() {
        let mut rng = Rng::new(5);
        let mut matches = Vec::new();
        for n in 0..60 {
            let tokens: Vec<u32> = (0..n).map(|_| (rng.uniform() * 2.0) as u32).collect();
            prefix_matches(&tokens, &mut matches);
            for k in 1..n {
                let pairs = tokens.iter().zip(&tokens[k..]);
                assert_eq!(matches[k], pairs.take_while(|(a, b)| a == b).count());
            }
        }
    }

    #[test]
    fn the_penalty_grows_with_the_repetition() {
        // Logits 0: the penalties are the differences of the log-probabilities.
        let penalty = |settings, past: &[u32]| {
            let mut dry = dry(settings, [2, 64], &[]);
            past.iter().for_each(|&token| dry.accept(token));
            let p = apply(&dry, 10);
            (p[0] / p[9]).ln()
        };
        let near = |a: f32, b: f32| (a - b).abs() < 1e-4;
        // Repetitions of 2, 3 and 4 tokens.
        assert!(near(penalty([0.5, 3.0], &[1, 2, 9, 0, 1, 2]), 0.5));
        assert!(near(penalty([0.5, 3.0], &[3, 1, 2, 9, 0, 3, 1, 2]), 1.5));
        assert!(near(penalty([0.5, 3.0], &[4, 3, 1, 2, 9, 0, 4, 3, 1, 2]), 4.5));
        // A base of 1 does not grow.
        assert!(near(penalty([0.5, 1.0], &[4, 3, 1, 2, 9, 0, 4, 3, 1, 2]), 0.5));
        // The longest of several repetitions counts.
        let twice = [3, 1, 2, 9, 0, 1, 2, 9, 0, 3, 1, 2];
        assert!(near(penalty([0.5, 3.0], &twice), 1.5));
    }

    #[test]
    fn repetitions_leave_the_window() {
        let past = [0, 1, 2, 3, 4, 0, 1];
        let penalizes = |last_n| {
            let mut dry = dry([1.0, 1.1], [2, last_n], &[]);
            past.iter().for_each(|&token| dry.accept(token));
            let p = apply(&dry, 5);
            p[4] < 0.19
        };
        assert!(penalizes(7) && penalizes(100) && !penalizes(6) && !penalizes(1));
    }

    #[test]
    fn a_breaker_within_the_last_tokens_limits_the_length() {
        let extends = |past: &[u32], breakers: &[Vec<u32>], token| {
            let mut dry = dry([1.0, 2.0], [1, 64], breakers);
            past.iter().for_each(|&token| dry.accept(token));
            let mut extends = TokenValues::new(10);
            dry.find_extensions(&mut extends, &mut DryScratch::default());
            extends.get(token)
        };
        let past = [1, 2, 3, 9, 0, 1, 2, 3];
        assert_eq!(extends(&past, &[], 9), 4);
        assert_eq!(extends(&past, &[vec![1]], 9), 3);
        assert_eq!(extends(&past, &[vec![2]], 9), 2);
        assert_eq!(extends(&past, &[vec![3]], 9), 0);
        // The tokens after a breaker of two count from its end.
        assert_eq!(extends(&past, &[vec![1, 2]], 9), 2);
        assert_eq!(extends(&past, &[vec![1, 3]], 9), 4);
        assert_eq!(extends(&past, &[vec![0, 1, 2]], 9), 2);
    }
}
