//! Making texts comparable before they are scored, as OpenAI's Whisper evaluations do: English
//! through `english`, other languages through `basic`, and languages written without spaces
//! letter by letter.
//!
//! Source: `whisper/normalizers/{basic,english}.py` of openai/whisper (MIT), ported so that the
//! results are equal on every text; `regex` expresses Python's character classes.

mod basic;
mod english;
mod numbers;
mod pattern;

use std::sync::LazyLock;

use basic::BasicNormalizer;
use english::EnglishNormalizer;

/// What the unit of an error is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    Word,
    Letter,
}

/// The units of `text` after normalization for `language` (ISO 639-1; `None`: not English).
pub(crate) fn units(text: &str, language: Option<&str>, unit: Unit) -> Vec<String> {
    static ENGLISH: LazyLock<EnglishNormalizer> = LazyLock::new(EnglishNormalizer::new);
    static BASIC: LazyLock<BasicNormalizer> = LazyLock::new(BasicNormalizer::new);
    let normalized = match (unit, language) {
        (Unit::Letter, _) => BASIC.normalize_letters(text),
        (Unit::Word, Some("en")) => ENGLISH.normalize(text),
        (Unit::Word, _) => BASIC.normalize(text),
    };
    normalized.split_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests;
