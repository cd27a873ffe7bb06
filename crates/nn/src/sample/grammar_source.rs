//! Inputs of a grammar: its text in one of the languages, and how each token of the vocabulary reads.

/// A grammar in one of the languages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum GrammarSource<'a> {
    /// llama.cpp's GBNF; the text is what `root` matches.
    Gbnf(&'a str),
    /// A JSON schema; `{}` is any JSON. Between two tokens of the text stand a space, or one or two line feeds and an
    /// indentation of at most 20, or nothing; `whitespace_flexible` or `whitespace_pattern` in the schema's
    /// `x-guidance` say otherwise.
    JsonSchema(&'a str),
    /// A regular expression that the whole text matches.
    Regex(&'a str),
    /// `llguidance`'s dialect of Lark; the text is what `start` matches.
    Lark(&'a str),
}

/// How a token reads in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenText<'a> {
    /// Ordinary text.
    Bytes(&'a [u8]),
    /// A special token's name, like `<think>`: no part of the text, but grammars may name it.
    Special(&'a str),
    /// Never part of a text.
    Unused,
}

impl<'a> GrammarSource<'a> {
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Gbnf(_) => "GBNF",
            Self::JsonSchema(_) => "JSON schema",
            Self::Regex(_) => "regular expression",
            Self::Lark(_) => "Lark",
        }
    }
}
