//! Splitting text into the pieces that BPE works on.
//!
//! Source: the pattern of openai/gpt-2 `encoder.py`, `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`:
//!
//! ```text
//! at each position:
//!     a contraction
//!     else the run of letters, of numbers or of others after an optional space
//!     else the run of white space, which leaves its last character to text after it, unless it is the only one
//! ```
//!
//! Own code: the tables and the engine of a regular expression are a third of a browser's binary for speech.

use unicode_general_category::{GeneralCategory as G, get_general_category};

const CONTRACTIONS: [&str; 7] = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d"];

/// Class of a character in the pattern.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Letter,
    Number,
    Space,
    Other,
}

/// Calls `piece` with each piece of `text` in order; together they are the whole text.
pub(crate) fn split_gpt2<'t>(mut text: &'t str, mut piece: impl FnMut(&'t str)) {
    while !text.is_empty() {
        let (head, tail) = text.split_at(first_piece(text));
        piece(head);
        text = tail;
    }
}

/// Length of the first piece of `text`, which is not empty.
fn first_piece(text: &str) -> usize {
    if let Some(contraction) = CONTRACTIONS.iter().find(|&&c| text.starts_with(c)) {
        return contraction.len();
    }
    let word = text.strip_prefix(' ').unwrap_or(text);
    match word.chars().next().map_or(Class::Space, class) {
        Class::Space => space_piece(text),
        class => text.len() - word.len() + run(word, class),
    }
}

/// Length of the piece of white space at the start of `text`.
fn space_piece(text: &str) -> usize {
    let len = run(text, Class::Space);
    let last = text[..len].char_indices().next_back().map_or(0, |(at, _)| at);
    if len < text.len() && last > 0 { last } else { len }
}

/// Length of the run of characters of a class at the start of `text`.
fn run(text: &str, of: Class) -> usize {
    text.find(|c| class(c) != of).unwrap_or(text.len())
}

fn class(c: char) -> Class {
    if c.is_whitespace() {
        return Class::Space;
    }
    match get_general_category(c) {
        G::UppercaseLetter
        | G::LowercaseLetter
        | G::TitlecaseLetter
        | G::ModifierLetter
        | G::OtherLetter => Class::Letter,
        G::DecimalNumber | G::LetterNumber | G::OtherNumber => Class::Number,
        _ => Class::Other,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;
    use regex::Regex;

    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &[&str]) {
        let mut pieces = Vec::new();
        split_gpt2(text, |piece| pieces.push(piece));
        assert_eq!(pieces, expected);
    }

    #[test]
    fn pieces() {
        check("", &[]);
        check("Hello, world", &["Hello", ",", " world"]);
        check("it's we'll I'D", &["it", "'s", " we", "'ll", " I", "'", "D"]);
        check("a   b", &["a", "  ", " b"]);
        check("a \n b", &["a", " \n", " b"]);
        check("a\n\nb", &["a", "\n", "\n", "b"]);
        check("a  ", &["a", "  "]);
        check("  a", &[" ", " a"]);
        check("\u{3000}\u{3000}日本", &["\u{3000}", "\u{3000}", "日本"]);
        check("x12 34.5", &["x", "12", " 34", ".", "5"]);
        check("नमस्ते", &["नमस", "्", "त", "े"]);
    }

    /// The published pattern without its look-ahead.
    static PATTERN: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"'(?:[stmd]|re|ve|ll)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+").unwrap()
    });

    /// Pieces by the pattern, after which a run gives its last white space back.
    fn by_pattern(text: &str) -> Vec<&str> {
        let (mut pieces, mut start) = (Vec::new(), 0);
        while let Some(found) = PATTERN.find_at(text, start) {
            let last = found.as_str().char_indices().next_back();
            let (last, c) = last.expect("no alternative is empty");
            let gives_back = c.is_whitespace() && last > 0 && found.end() < text.len();
            let end = if gives_back { found.start() + last } else { found.end() };
            pieces.push(&text[start..end]);
            start = end;
        }
        pieces
    }

    #[test]
    fn every_character_has_the_class_of_the_pattern() {
        for c in (0..=u32::from(char::MAX)).filter_map(char::from_u32) {
            let text = format!("a{c}1{c}.{c} {c}");
            check(&text, &by_pattern(&text));
        }
    }

    proptest! {
        #[test]
        fn pieces_are_those_of_the_pattern(text in r"('(s|t|re|ve|m|ll|d|x)| |\s|\p{L}|\p{N}|.|\n){0,40}") {
            check(&text, &by_pattern(&text));
        }
    }
}
