//! Rules applied to the logits before a token is chosen (openai/whisper `decoding.py`:
//! `SuppressBlank`, `SuppressTokens`, `ApplyTimestampRules`).

use stonechat_nn::sample::{log_sum_exp, max};
use stonechat_text::Tokenizer;

use crate::{Options, SpecialTokens, TIMESTAMP_SECONDS};

const NEVER: f32 = f32::NEG_INFINITY;

/// The rules of one decoding run.
#[derive(Debug)]
pub(crate) struct Rules {
    special: SpecialTokens,
    suppressed: Vec<u32>,
    suppressed_first: Vec<u32>,
    /// `None` when timestamps are off.
    max_initial_timestamp: Option<u32>,
    /// 0 lets everything repeat.
    no_repeat_ngram_size: usize,
}

impl Rules {
    pub(crate) fn new(special: SpecialTokens, tokenizer: &Tokenizer, options: &Options) -> Self {
        let mut suppressed = vec![
            special.transcribe,
            special.translate,
            special.sot,
            special.start_of_prev,
            special.start_of_lm,
            special.no_speech,
        ];
        if options.suppress_non_speech {
            suppressed.extend(non_speech_tokens(tokenizer));
        }
        suppressed.extend(&options.suppress_tokens);
        // The reference leaves `<|notimestamps|>` to the timestamp rules; without them the prompt
        // already holds it.
        suppressed.push(special.no_timestamps);
        suppressed.sort_unstable();
        suppressed.dedup();
        let mut suppressed_first = Vec::new();
        if options.suppress_blank {
            suppressed_first.extend(tokenizer.encode(" "));
            suppressed_first.push(special.eot);
        }
        let max_initial_timestamp = (!options.without_timestamps)
            .then(|| (f64::from(options.max_initial_timestamp) / TIMESTAMP_SECONDS).round() as u32);
        let no_repeat_ngram_size = options.no_repeat_ngram_size;
        Self { special, suppressed, suppressed_first, max_initial_timestamp, no_repeat_ngram_size }
    }

    /// Sets the logits of tokens that may not follow `sampled`, the window's text so far, to negative
    /// infinity. A text that says something may not end with a timestamp before `reach`.
    pub(crate) fn apply(&self, logits: &mut [f32], sampled: &[u32], reach: Option<u32>) {
        if sampled.is_empty() {
            forbid(logits, &self.suppressed_first);
        }
        forbid(logits, &self.suppressed);
        if self.no_repeat_ngram_size > 0 {
            let text = &mut logits[..self.special.eot as usize];
            forbid_ngrams(text, sampled, self.no_repeat_ngram_size);
        }
        if let (Some(reach), [_, .., last]) = (reach, sampled)
            && self.special.is_timestamp(*last)
            && *last < reach
        {
            logits[self.special.eot as usize] = NEVER;
        }
        if let Some(max_initial) = self.max_initial_timestamp {
            self.apply_timestamps(logits, sampled, max_initial);
        }
    }

    fn apply_timestamps(&self, logits: &mut [f32], sampled: &[u32], max_initial: u32) {
        let begin = self.special.timestamp_begin as usize;
        let is_timestamp = |token: &u32| self.special.is_timestamp(*token);
        let last_is = sampled.last().is_some_and(is_timestamp);
        let penultimate_is = sampled.len() < 2 || is_timestamp(&sampled[sampled.len() - 2]);
        if last_is {
            if penultimate_is {
                logits[begin..].fill(NEVER);
            } else {
                logits[..self.special.eot as usize].fill(NEVER);
            }
        }
        if let Some(&last) = sampled.iter().rev().find(|t| is_timestamp(t)) {
            // Times never decrease, and a segment that was opened must not be empty.
            let first_allowed = if last_is && !penultimate_is { last } else { last + 1 } as usize;
            let end = first_allowed.min(logits.len());
            logits[begin..end.max(begin)].fill(NEVER);
        }
        if sampled.is_empty() {
            logits[..begin].fill(NEVER);
            let first_forbidden = begin + max_initial as usize + 1;
            if first_forbidden < logits.len() {
                logits[first_forbidden..].fill(NEVER);
            }
        }
        let (text, timestamps) = logits.split_at_mut(begin);
        if log_sum_exp(timestamps) > max(text) {
            text.fill(NEVER);
        }
    }
}

fn forbid(logits: &mut [f32], tokens: &[u32]) {
    for &token in tokens {
        if let Some(logit) = logits.get_mut(token as usize) {
            *logit = NEVER;
        }
    }
}

/// Sets the logits of text tokens that would repeat `n` adjacent tokens of `sampled` to negative
/// infinity (CTranslate2 `NoRepeatNgram`). Timestamps come in equal pairs.
fn forbid_ngrams(text: &mut [f32], sampled: &[u32], n: usize) {
    let Some(start) = (sampled.len() + 1).checked_sub(n) else { return };
    let last = &sampled[start..];
    for ngram in sampled.windows(n).filter(|ngram| ngram[..n - 1] == *last) {
        forbid(text, &ngram[n - 1..]);
    }
}

/// Tokens of symbols that annotate rather than transcribe: brackets, notes, speaker dashes.
fn non_speech_tokens(tokenizer: &Tokenizer) -> Vec<u32> {
    let plain = "\" # ( ) * + / : ; < = > @ [ \\ ] ^ _ ` { | } ~ 「 」 『 』 << >> <<< >>> -- --- \
                 -( -[ (' (\" (( )) ((( ))) [[ ]] {{ }} ♪♪ ♪♪♪";
    // These may be several tokens; their first one occurs in nothing else.
    let musical = "♩ ♪ ♫ ♬ ♭ ♮ ♯";
    // A hyphen and a quote are fine inside a word, not at its start.
    let mut tokens: Vec<u32> =
        [" -", " '"].iter().filter_map(|s| tokenizer.encode(s).first().copied()).collect();
    for (symbols, any_length) in [(plain, false), (musical, true)] {
        for symbol in symbols.split_whitespace() {
            for text in [symbol.to_owned(), format!(" {symbol}")] {
                let ids = tokenizer.encode(&text);
                if ids.len() == 1 || any_length {
                    tokens.extend(ids.first());
                }
            }
        }
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::{NEVER, Rules, forbid_ngrams};
    use crate::SpecialTokens;

    fn rules() -> Rules {
        Rules {
            special: SpecialTokens::new(51865).unwrap(),
            suppressed: vec![7],
            suppressed_first: vec![220, 50257],
            max_initial_timestamp: Some(50),
            no_repeat_ngram_size: 0,
        }
    }

    fn allowed(sampled: &[u32]) -> Vec<usize> {
        allowed_before(sampled, None)
    }

    fn allowed_before(sampled: &[u32], reach: Option<u32>) -> Vec<usize> {
        let mut logits = vec![0.0; 51865];
        // Text must outweigh the sum of 1501 equal timestamps for the last rule not to fire.
        logits[..50364].fill(10.0);
        rules().apply(&mut logits, sampled, reach);
        (0..51865).filter(|&i| logits[i] > NEVER).collect()
    }

    const BEGIN: u32 = 50364;

    #[test]
    fn a_window_starts_with_a_timestamp_of_at_most_one_second() {
        assert_eq!(allowed(&[]), (50364..=50414).collect::<Vec<_>>());
    }

    #[test]
    fn text_follows_the_first_timestamp() {
        let ids = allowed(&[BEGIN]);
        assert!(ids.iter().all(|&i| i < BEGIN as usize) && ids.contains(&220) && !ids.contains(&7));
    }

    #[test]
    fn a_closing_timestamp_is_followed_by_its_pair_or_the_end() {
        let ids = allowed(&[BEGIN, 400, BEGIN + 100]);
        assert_eq!(ids[0], 50257);
        assert_eq!(ids.iter().find(|&&i| i >= BEGIN as usize), Some(&(BEGIN as usize + 100)));
    }

    #[test]
    fn a_text_goes_on_until_speech_ends() {
        let ends =
            |sampled: &[u32], reach| allowed_before(sampled, Some(BEGIN + reach)).contains(&50257);
        for stamps in [&[BEGIN + 100][..], &[BEGIN + 100, BEGIN + 100]] {
            let sampled = [&[BEGIN, 400], stamps].concat();
            assert!(ends(&sampled, 100) && !ends(&sampled, 101), "{stamps:?}");
        }
        assert!(ends(&[BEGIN], 100), "a window may hold nothing");
        assert!(ends(&[BEGIN, 400], 100), "what has no stamp ends where its window does");
    }

    #[test]
    fn times_grow_after_text() {
        let ids = allowed(&[BEGIN + 10, 400]);
        assert_eq!(ids.iter().find(|&&i| i >= BEGIN as usize), Some(&(BEGIN as usize + 11)));
    }

    #[test]
    fn likely_timestamps_win_over_text() {
        let mut logits = vec![0.0; 51865];
        logits[400] = 5.0;
        rules().apply(&mut logits, &[BEGIN, 400], None);
        assert!(logits[400] == NEVER, "ln(1500) > 5");
    }

    #[test]
    fn ngrams_are_not_repeated() {
        #[track_caller]
        fn check(n: usize, sampled: &[u32], expected: &[usize]) {
            let mut logits = vec![0.0; 10];
            forbid_ngrams(&mut logits, sampled, n);
            let forbidden: Vec<usize> = (0..10).filter(|&i| logits[i] == NEVER).collect();
            assert_eq!(forbidden, expected, "{n} {sampled:?}");
        }
        check(1, &[1, 2, 1], &[1, 2]);
        check(2, &[1, 2, 1], &[2]);
        check(2, &[1, 2, 1, 3, 1], &[2, 3]);
        check(3, &[1, 2, 4, 1, 2], &[4]);
        check(3, &[1, 2, 4, 2, 1], &[]);
        check(3, &[1], &[]);
        check(1, &[], &[]);
        // A timestamp may close one segment and open the next.
        check(1, &[50], &[]);
    }
}
