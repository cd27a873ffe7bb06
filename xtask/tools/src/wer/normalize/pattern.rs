//! Python's regular expressions: `\b` and `\s` mean other characters there than in Rust.

use fancy_regex::{Captures, Regex};

/// What Python's `\s` matches (`str.isspace`).
const SPACE: &str = r"[\s\x1c-\x1f]";
/// What Python's `\w` matches (`str.isalnum` or the underscore).
const WORD: &str = r"[\p{L}\p{N}_]";

/// A pattern as written for Python's `re`.
#[derive(Debug)]
pub(super) struct Pattern(Regex);

impl Pattern {
    /// # Panics
    /// If the pattern is not valid; all patterns are constants.
    pub(super) fn new(python: &str) -> Self {
        let boundary = format!("(?:(?<={WORD})(?!{WORD})|(?<!{WORD})(?={WORD}))");
        let rust = python.replace(r"\b", &boundary).replace(r"\s", SPACE);
        Self(Regex::new(&rust).unwrap_or_else(|error| panic!("{python}: {error}")))
    }

    /// Replaces every match by `replacement`, in which `${1}` is the first group.
    pub(super) fn replace(&self, text: &str, replacement: &str) -> String {
        self.0.replace_all(text, replacement).into_owned()
    }

    /// Replaces every match by what `replacement` makes of it.
    pub(super) fn replace_with(
        &self,
        text: &str,
        replacement: impl Fn(&Captures<'_, str>) -> String,
    ) -> String {
        self.0.replace_all(text, replacement).into_owned()
    }

    /// The texts between the matches.
    pub(super) fn split<'t>(&self, text: &'t str) -> Vec<&'t str> {
        // An error means too many backtracking steps, which these patterns do not take.
        self.0.split(text).filter_map(Result::ok).collect()
    }

    pub(super) fn is_match(&self, text: &str) -> bool {
        self.0.is_match(text).unwrap_or(false)
    }
}

/// Python's `str.split()`.
pub(super) fn words(text: &str) -> impl Iterator<Item = &str> {
    let is_space = |c: char| c.is_whitespace() || ('\x1c'..='\x1f').contains(&c);
    text.split(is_space).filter(|word| !word.is_empty())
}
