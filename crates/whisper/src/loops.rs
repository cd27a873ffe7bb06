//! Loop detection: a decoder that repeats the same words until its window is full.
//!
//! Timestamps differ in every round, so only text tokens are compared. The limits are above refrains
//! and laughter, which end by themselves.

/// Thresholds of loop detection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LoopLimits {
    /// Minimum number of repetitions.
    pub(crate) min_rounds: usize,
    /// Minimum number of text tokens in all repetitions: short words are repeated for emphasis.
    pub(crate) min_tokens: usize,
}

impl LoopLimits {
    /// Thresholds for the tokens of a window.
    pub(crate) const WINDOW: Self = Self { min_rounds: 6, min_tokens: 36 };
}

/// Longest round in tokens; six of them fill a window.
const MAX_PERIOD: usize = 37;

/// Text tokens in one round of the loop at the end of `tokens`; `None` without a loop.
pub(crate) fn period(
    tokens: &[u32],
    is_text: impl Fn(u32) -> bool + Copy,
    limits: LoopLimits,
) -> Option<usize> {
    (1..=MAX_PERIOD).find(|&period| {
        let n_tokens = limits.min_tokens.max(limits.min_rounds * period);
        // Repetitions are equal if each token equals the one a period before it.
        repeated_tail(tokens, is_text, period).take(n_tokens - period).count() == n_tokens - period
    })
}

/// `tokens` up to the end of the first round of the loop at their end, with the timestamp after it;
/// `None` without a loop.
pub(crate) fn without_repeats(
    tokens: &[u32],
    is_text: impl Fn(u32) -> bool + Copy,
    limits: LoopLimits,
) -> Option<&[u32]> {
    let period = period(tokens, is_text, limits)?;
    let n_repeated = repeated_tail(tokens, is_text, period).count();
    let n_text = tokens.iter().filter(|&&t| is_text(t)).count();
    let last = (0..tokens.len()).filter(|&i| is_text(tokens[i])).nth(n_text - n_repeated - 1)?;
    let is_closed = tokens.get(last + 1).is_some_and(|&t| !is_text(t));
    Some(&tokens[..last + 1 + usize::from(is_closed)])
}

/// Text tokens, from the end backwards, as long as they equal the one `period` before them.
fn repeated_tail(
    tokens: &[u32],
    is_text: impl Fn(u32) -> bool + Copy,
    period: usize,
) -> impl Iterator<Item = u32> {
    let text = move || tokens.iter().rev().copied().filter(move |&t| is_text(t));
    text().zip(text().skip(period)).take_while(|(a, b)| a == b).map(|(a, _)| a)
}

#[cfg(test)]
mod tests {
    use super::{LoopLimits, period, without_repeats};

    /// Timestamps are the tokens from 1000 on.
    fn is_text(token: u32) -> bool {
        token < 1000
    }

    #[track_caller]
    fn check(tokens: &[u32], loop_of: Option<(usize, &[u32])>) {
        let limits = LoopLimits::WINDOW;
        assert_eq!(period(tokens, is_text, limits), loop_of.map(|l| l.0));
        assert_eq!(without_repeats(tokens, is_text, limits), loop_of.map(|l| l.1));
    }

    #[test]
    fn one_word_again_and_again() {
        let mut tokens = vec![1000, 7, 8];
        tokens.extend([5; 35]);
        check(&tokens, None);
        tokens.push(5);
        check(&tokens, Some((1, &[1000, 7, 8, 5])));
    }

    #[test]
    fn timestamps_do_not_hide_a_loop() {
        let rounds = |n: u32| -> Vec<u32> {
            let round = |i| [1000 + 2 * i, 1, 2, 3, 4, 5, 6, 1002 + 2 * i];
            [1000, 9, 1000].into_iter().chain((0..n).flat_map(round)).collect()
        };
        check(&rounds(5), None);
        check(&rounds(6), Some((6, &[1000, 9, 1000, 1000, 1, 2, 3, 4, 5, 6, 1002])));
        // A round that has begun does not hide it either.
        let mut begun = rounds(6);
        begun.extend([1012, 1, 2]);
        check(&begun, Some((6, &[1000, 9, 1000, 1000, 1, 2, 3, 4, 5, 6, 1002])));
    }

    #[test]
    fn refrains_and_what_does_not_repeat_are_no_loops() {
        let refrain: Vec<u32> = (0..4).flat_map(|_| 1..=20).collect();
        check(&refrain, None);
        check(&(0..200).collect::<Vec<u32>>(), None);
        check(&[1000; 100], None);
        check(&[], None);
    }

    #[test]
    fn six_rounds_of_many_words_are_a_loop() {
        for (n_words, is_loop) in [(7, true), (20, true), (37, true), (38, false)] {
            let words = |n: u32| (0..n).map(|i| 1 + i % n_words).collect::<Vec<u32>>();
            check(&words(6 * n_words - 1), None);
            let round = words(n_words);
            check(&words(6 * n_words), is_loop.then_some((n_words as usize, &round[..])));
        }
    }
}
