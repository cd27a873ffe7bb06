//! Spelled-out English numbers to digits: `EnglishNumberNormalizer`.
//!
//! Keeps suffixes (`1960s`, `32nd`), puts currencies before the number (`$20`), joins single
//! digits (`one oh one` to `101`). `vocabulary` has the words, `reader` the walk over a text.

mod reader;
mod vocabulary;

use super::pattern::{Pattern, words};
use reader::Reader;
use vocabulary::Vocabulary;

/// Rewrites the numbers of lower-case text.
#[derive(Debug)]
pub(super) struct NumberNormalizer {
    vocabulary: Vocabulary,
    numeric: Pattern,
    and_a_half: Pattern,
    before: Vec<(Pattern, &'static str)>,
    dollars_and_cents: Pattern,
    cents: Pattern,
    one: Pattern,
}

impl NumberNormalizer {
    pub(super) fn new() -> Self {
        let before = [
            (r"([a-z])([0-9])", "${1} ${2}"),
            (r"([0-9])([a-z])", "${1} ${2}"),
            (r"([0-9])\s+(st|nd|rd|th|s)\b", "${1}${2}"),
        ];
        Self {
            vocabulary: Vocabulary::new(),
            numeric: Pattern::new(r"^\d+(\.\d+)?$"),
            and_a_half: Pattern::new(r"\band\s+a\s+half\b"),
            before: before.map(|(python, by)| (Pattern::new(python), by)).into(),
            dollars_and_cents: Pattern::new(r"([€£$])([0-9]+) (?:and )?¢([0-9]{1,2})\b"),
            cents: Pattern::new(r"[€£$]0.([0-9]{1,2})\b"),
            one: Pattern::new(r"\b1(s?)\b"),
        }
    }

    pub(super) fn normalize(&self, text: &str) -> String {
        let text = self.preprocess(text);
        let words: Vec<&str> = words(&text).collect();
        let read = Reader::new(&self.vocabulary, &self.numeric).read(&words);
        self.postprocess(&read.join(" "))
    }

    /// "and a half" after a number is "point five"; letters and digits are set apart.
    fn preprocess(&self, text: &str) -> String {
        let segments = self.and_a_half.split(text);
        let mut parts = Vec::new();
        for (i, segment) in segments.iter().enumerate() {
            let Some(last_word) = words(segment).last() else { continue };
            parts.push(*segment);
            if i + 1 < segments.len() {
                let after_number = self.vocabulary.is_decimal(last_word)
                    || self.vocabulary.multiplier(last_word).is_some();
                parts.push(if after_number { "point five" } else { "and a half" });
            }
        }
        let text = parts.join(" ");
        self.before.iter().fold(text, |text, (pattern, by)| pattern.replace(&text, by))
    }

    /// `$2 and ¢7` is `$2.07`, `$0.36` is `¢36`, and a lone 1 is spelled "one".
    fn postprocess(&self, text: &str) -> String {
        let text = self
            .dollars_and_cents
            .replace_with(text, |found| format!("{}{}.{:0>2}", &found[1], &found[2], &found[3]));
        let text = self.cents.replace_with(&text, |found| {
            let cents = found[1].trim_start_matches('0');
            format!("¢{}", if cents.is_empty() { "0" } else { cents })
        });
        self.one.replace(&text, "one${1}")
    }
}
