//! Splitting text into the pieces that BPE works on.
//!
//! Source: the pattern of openai/gpt-2 `encoder.py`,
//! `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`.
//! Its look-ahead only ever gives the last white space of a run back to the text after it, which is
//! plain code here, so that a regular expression without backtracking suffices.

use std::sync::LazyLock;

use regex::Regex;

static GPT2: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"'(?:[stmd]|re|ve|ll)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+")
        .expect("the constant pattern is valid")
});

/// Calls `piece` with each piece of `text` in order; together they are the whole text.
pub(crate) fn split_gpt2<'t>(text: &'t str, mut piece: impl FnMut(&'t str)) {
    let mut start = 0;
    while start < text.len() {
        // Every character belongs to some alternative, so a match starts here.
        let Some(found) = GPT2.find_at(text, start) else { break };
        let end = found.start() + without_given_back(found.as_str(), found.end() < text.len());
        piece(&text[start..end]);
        start = end;
    }
}

/// Length of the part of `matched` to keep: a run of white space with text after it leaves its
/// last character to that text, unless it is the only one.
fn without_given_back(matched: &str, followed: bool) -> usize {
    let mut from_the_back = matched.char_indices().rev();
    match (from_the_back.next(), from_the_back.next()) {
        (Some((last, c)), Some(_)) if followed && c.is_whitespace() => last,
        _ => matched.len(),
    }
}

#[cfg(test)]
mod tests {
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
}
