//! Logit filters of a window's options: the tokens that may follow a text. Devices apply them, see
//! [`Op::LogitFilter`](stonechat_nn::op::Op::LogitFilter).
//!
//! | filter | source |
//! |---|---|
//! | blank and end at the start, suppressed tokens | openai/whisper `SuppressBlank`, `SuppressTokens` |
//! | timestamps in pairs, ascending, at the start | openai/whisper `ApplyTimestampRules` |
//! | repeated n-grams | CTranslate2 `NoRepeatNgram` |
//! | no end before `min_end_timestamp` | own, for batched chunks |

use std::ops::Range;

use stonechat_text::Tokenizer;

use crate::TIMESTAMP_SECONDS;
use crate::model::Model;
use crate::options::Options;
use crate::special::SpecialTokens;

/// Logit filters of one recording.
#[derive(Debug)]
pub struct Rules {
    special: SpecialTokens,
    /// Tokens suppressed everywhere.
    suppressed: Vec<u32>,
    /// Tokens suppressed at the start of a window.
    suppressed_first: Vec<u32>,
    /// In timestamp steps of 20 ms; `None` without timestamps.
    max_initial_timestamp: Option<u32>,
    /// 0 for no limit.
    no_repeat_ngram_size: usize,
}

impl Rules {
    /// The filters of `options`.
    #[must_use]
    pub fn new(model: &Model, options: &Options) -> Self {
        Self::of(*model.special(), model.tokenizer(), options)
    }

    fn of(special: SpecialTokens, tokenizer: &Tokenizer, options: &Options) -> Self {
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
        // The reference suppresses `<|notimestamps|>` in its timestamp rules; without timestamps it
        // is part of the prompt.
        suppressed.push(special.no_timestamps);
        suppressed.sort_unstable();
        suppressed.dedup();
        suppressed.retain(|&token| token < special.vocab_size());
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

    /// Tokens suppressed in every row.
    pub(crate) fn suppressed(&self) -> &[u32] {
        &self.suppressed
    }

    /// Appends the tokens suppressed after `sampled`, the tokens of the window so far, to `list`. Text that ends with a timestamp
    /// before `min_end_timestamp` may not end.
    pub(crate) fn suppress_after(
        &self,
        sampled: &[u32],
        min_end_timestamp: Option<u32>,
        list: &mut Vec<u32>,
    ) {
        if sampled.is_empty() {
            list.extend(&self.suppressed_first);
        }
        if self.no_repeat_ngram_size > 0 {
            let repeated = repeated_ngrams(sampled, self.no_repeat_ngram_size);
            // Timestamps come in equal pairs.
            list.extend(repeated.filter(|&token| token < self.special.eot));
        }
        if let (Some(min_end), [_, .., last]) = (min_end_timestamp, sampled)
            && self.special.is_timestamp(*last)
            && *last < min_end
        {
            list.push(self.special.eot);
        }
    }

    /// Text tokens and timestamps that may follow `sampled`, without regard to suppressed tokens.
    pub(crate) fn ranges(&self, sampled: &[u32]) -> [Range<u32>; 2] {
        let vocab_size = self.special.vocab_size();
        let Some(max_initial) = self.max_initial_timestamp else {
            return [0..vocab_size, vocab_size..vocab_size];
        };
        let begin = self.special.timestamp_begin;
        let (mut text, mut timestamps) = (0..begin, begin..vocab_size);
        let is_timestamp = |token: &u32| self.special.is_timestamp(*token);
        let last_is = sampled.last().is_some_and(is_timestamp);
        let penultimate_is = sampled.len() < 2 || is_timestamp(&sampled[sampled.len() - 2]);
        if last_is && !penultimate_is {
            text.start = self.special.eot;
        }
        if let Some(&last) = sampled.iter().rev().find(|t| is_timestamp(t)) {
            // Timestamps do not decrease, and a segment must not be empty.
            timestamps.start = if last_is && !penultimate_is { last } else { last + 1 };
        }
        if last_is && penultimate_is {
            timestamps.start = vocab_size;
        }
        if sampled.is_empty() {
            text.start = begin;
            timestamps.end = vocab_size.min(begin.saturating_add(max_initial).saturating_add(1));
        }
        [text, timestamps]
    }
}

/// Tokens that would repeat an n-gram of `sampled` (CTranslate2 `NoRepeatNgram`).
fn repeated_ngrams(sampled: &[u32], n: usize) -> impl Iterator<Item = u32> {
    let start = (sampled.len() + 1).checked_sub(n);
    start.into_iter().flat_map(move |start| {
        let last = &sampled[start..];
        let ngrams = sampled.windows(n).filter(move |ngram| ngram[..n - 1] == *last);
        ngrams.map(move |ngram| ngram[n - 1])
    })
}

/// Tokens of annotations: brackets, notes, speaker dashes (openai/whisper `non_speech_tokens`).
fn non_speech_tokens(tokenizer: &Tokenizer) -> Vec<u32> {
    let plain = "\" # ( ) * + / : ; < = > @ [ \\ ] ^ _ ` { | } ~ 「 」 『 』 << >> <<< >>> -- --- \
                 -( -[ (' (\" (( )) ((( ))) [[ ]] {{ }} ♪♪ ♪♪♪";
    // If one of these is several tokens, its first token is suppressed.
    let musical = "♩ ♪ ♫ ♬ ♭ ♮ ♯";
    // Hyphens and quotes are allowed within a word, not at its start.
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
    use std::sync::Arc;

    use pollster::block_on;
    use stonechat_nn::op::{Count, Port, Rows};
    use stonechat_nn::{Counts, Cpu, Device, PortRange, Recorder, SegmentName, Step};
    use stonechat_text::Tokenizer;

    use super::{Rules, non_speech_tokens, repeated_ngrams};
    use crate::logit_filters::LogitFilters;
    use crate::options::Options;
    use crate::special::SpecialTokens;

    fn rules() -> Rules {
        Rules {
            special: SpecialTokens::new(51865).unwrap(),
            suppressed: vec![7],
            suppressed_first: vec![220, 50257],
            max_initial_timestamp: Some(50),
            no_repeat_ngram_size: 0,
        }
    }

    /// Logit of a token that may not follow.
    const SUPPRESSED: f32 = f32::NEG_INFINITY;

    /// Filters a row of logits in a step of the CPU.
    fn filter(
        rules: Rules,
        logits: &mut Vec<f32>,
        sampled: &[u32],
        min_end_timestamp: Option<u32>,
    ) {
        let mut filters = LogitFilters::new(logits.len());
        filters.resize(1);
        filters.set_last(&Arc::new(rules), sampled, min_end_timestamp);
        let (port, rows) = (Port::value(0), Rows::of(Count::Logits));
        let mut r = Recorder::new();
        r.segment(SegmentName::Logits, rows);
        let x = r.import(port, rows, logits.len());
        let filtered = r.logit_filter(x);
        r.output(Port::LOGITS, filtered);
        let mut counts = Counts::default();
        counts[Count::Logits] = 1;
        let device = Device::from(Cpu::new(1).unwrap());
        let mut executable = device.compile(&r.finish(), &counts).unwrap();
        executable.import(port, logits);
        executable.run(&Step {
            segments: &[SegmentName::Logits],
            counts,
            logit_filters: filters.rows(),
            suppressed: filters.suppressed(),
            ..Step::default()
        });
        let range = PortRange::first(Port::LOGITS, logits.len());
        block_on(executable.read(&[range], logits)).unwrap();
    }

    fn allowed(sampled: &[u32]) -> Vec<usize> {
        allowed_before(sampled, None)
    }

    fn allowed_before(sampled: &[u32], min_end_timestamp: Option<u32>) -> Vec<usize> {
        let mut logits = vec![0.0; 51865];
        // Text must outweigh the sum of 1501 equal timestamps for the last rule not to fire.
        logits[..50364].fill(10.0);
        filter(rules(), &mut logits, sampled, min_end_timestamp);
        (0..51865).filter(|&i| logits[i] > SUPPRESSED).collect()
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
    fn text_goes_on_until_speech_ends() {
        let ends = |sampled: &[u32], min_end| {
            allowed_before(sampled, Some(BEGIN + min_end)).contains(&50257)
        };
        for timestamps in [&[BEGIN + 100][..], &[BEGIN + 100, BEGIN + 100]] {
            let sampled = [&[BEGIN, 400], timestamps].concat();
            assert!(ends(&sampled, 100) && !ends(&sampled, 101), "{timestamps:?}");
        }
        assert!(ends(&[BEGIN], 100), "a window may be empty");
        assert!(ends(&[BEGIN, 400], 100), "text without an end timestamp ends with its window");
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
        filter(rules(), &mut logits, &[BEGIN, 400], None);
        assert!(logits[400] == SUPPRESSED, "ln(1500) > 5");
    }

    #[test]
    fn ngrams_are_not_repeated() {
        #[track_caller]
        fn check(n: usize, sampled: &[u32], expected: &[u32]) {
            let mut repeated: Vec<u32> = repeated_ngrams(sampled, n).collect();
            repeated.sort_unstable();
            repeated.dedup();
            assert_eq!(repeated, expected, "{n} {sampled:?}");
        }
        check(1, &[1, 2, 1], &[1, 2]);
        check(2, &[1, 2, 1], &[2]);
        check(2, &[1, 2, 1, 3, 1], &[2, 3]);
        check(3, &[1, 2, 4, 1, 2], &[4]);
        check(3, &[1, 2, 4, 2, 1], &[]);
        check(3, &[1], &[]);
        check(1, &[], &[]);
    }

    #[test]
    fn a_pair_of_timestamps_is_followed_by_text() {
        let pair = [BEGIN + 9, BEGIN + 9];
        for sampled in [&pair[..], &[BEGIN, 400, 401, BEGIN + 9, BEGIN + 9]] {
            let ids = allowed(sampled);
            assert!(ids.iter().all(|&i| i < BEGIN as usize) && ids.contains(&400), "{sampled:?}");
        }
        // Text before the first timestamp: that one closes a segment.
        let ids = allowed(&[400, BEGIN + 9]);
        assert_eq!((ids[0], ids.contains(&(BEGIN as usize + 9))), (50257, true));
    }

    #[test]
    fn times_grow_after_several_words() {
        let ids = allowed(&[BEGIN + 10, 400, 401]);
        assert_eq!(ids.iter().find(|&&i| i >= BEGIN as usize), Some(&(BEGIN as usize + 11)));
        assert!(ids.contains(&400) && ids.contains(&50257));
    }

    #[test]
    fn text_as_likely_as_the_timestamps_stays() {
        // One timestamp is left, the last.
        let mut logits = vec![1.0; 51865];
        filter(rules(), &mut logits, &[BEGIN + 1499, 400], None);
        let last = BEGIN as usize + 1500;
        assert_eq!(last, logits.len() - 1);
        assert_eq!((logits[400], logits[last - 1], logits[last]), (1.0, SUPPRESSED, 1.0));
    }

    #[test]
    fn a_late_first_timestamp_may_be_allowed() {
        for (max_initial_timestamp, last) in [(Some(1500), 51864), (Some(5000), 51864)] {
            let rules = Rules { max_initial_timestamp, ..rules() };
            let mut logits = vec![0.0; 51865];
            filter(rules, &mut logits, &[], None);
            let is_allowed = |&i: &usize| logits[i] > SUPPRESSED;
            assert_eq!((0..51865).find(is_allowed), Some(BEGIN as usize));
            assert_eq!((0..51865).rfind(is_allowed), Some(last));
        }
    }

    #[test]
    fn without_timestamps_only_suppressed_tokens_are_forbidden() {
        let forbidden = |sampled: &[u32]| {
            let rules = Rules { max_initial_timestamp: None, ..rules() };
            let mut logits = vec![0.0; 51865];
            filter(rules, &mut logits, sampled, None);
            (0..51865).filter(|&i| logits[i] == SUPPRESSED).collect::<Vec<_>>()
        };
        assert_eq!(forbidden(&[]), [7, 220, 50257]);
        assert_eq!(forbidden(&[400]), [7]);
    }

    #[test]
    fn only_text_is_kept_from_repeating() {
        let mut rules = rules();
        (rules.no_repeat_ngram_size, rules.max_initial_timestamp) = (1, None);
        let mut logits = vec![0.0; 51865];
        filter(rules, &mut logits, &[BEGIN, 400, BEGIN + 5, BEGIN + 5], None);
        let forbidden = (0..51865).filter(|&i| logits[i] == SUPPRESSED).collect::<Vec<_>>();
        assert_eq!(forbidden, [7, 400]);
    }

    /// Token of the `i`-th word of a vocabulary that starts with the 256 bytes.
    fn word(i: u32) -> u32 {
        256 + i
    }

    fn tokenizer() -> Tokenizer {
        let bytes = (0..=255u8).map(|byte| vec![byte]);
        // `((` is one token, ` ((` and `--` are not; neither is any note.
        let words = ["((", " (", " -", " '"].map(|word| word.as_bytes().to_vec());
        Tokenizer::from_ranked(&bytes.chain(words).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn symbols_that_are_not_speech_are_suppressed_if_they_are_one_token() {
        let mut tokens = non_speech_tokens(&tokenizer());
        tokens.sort_unstable();
        tokens.dedup();
        let mut expected: Vec<u32> =
            b"\"#()*+/:;<=>@[\\]^_`{|}~".iter().map(|&b| b.into()).collect();
        // The first byte of every note, and the space before one.
        expected.extend([0x20, 0xe2]);
        expected.extend((0..4).map(word));
        expected.sort_unstable();
        assert_eq!(tokens, expected);
        assert!(!tokens.contains(&u32::from(b'-')), "`--` is two tokens");
    }

    #[test]
    fn options_choose_what_is_suppressed() {
        let special = SpecialTokens::new(51865).unwrap();
        let of = |options: &Options| Rules::of(special, &tokenizer(), options);
        let default = of(&Options::default());
        assert!(default.suppressed.contains(&word(0)) && default.suppressed.is_sorted());
        assert_eq!(default.suppressed_first, [0x20, special.eot]);
        assert_eq!(default.max_initial_timestamp, Some(50));
        let few = of(&Options {
            suppress_non_speech: false,
            suppress_blank: false,
            suppress_tokens: vec![9, 5],
            max_initial_timestamp: 0.52,
            no_repeat_ngram_size: 3,
            ..Options::default()
        });
        let mut expected = vec![
            5,
            9,
            special.sot,
            special.translate,
            special.transcribe,
            special.start_of_lm,
            special.start_of_prev,
            special.no_speech,
            special.no_timestamps,
        ];
        expected.sort_unstable();
        assert_eq!(few.suppressed, expected);
        assert!(few.suppressed_first.is_empty());
        assert_eq!((few.max_initial_timestamp, few.no_repeat_ngram_size), (Some(26), 3));
        let untimed = of(&Options { without_timestamps: true, ..Options::default() });
        assert_eq!(untimed.max_initial_timestamp, None);
    }
}
