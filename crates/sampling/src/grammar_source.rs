//! Inputs of a grammar: its text in one of the languages, and the text of each token of the vocabulary.

/// Source text of a grammar.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum GrammarSource {
    /// llama.cpp's GBNF; the start rule is `root`.
    Gbnf(String),
    /// JSON schema; `{}` is any JSON. White space between JSON tokens is nothing, one space, or one or two line feeds and
    /// at most 20 blanks, unless `whitespace_flexible` or `whitespace_pattern` in the schema's `x-guidance` is set. An
    /// object with `properties` has no others unless `additionalProperties` allows them. An unknown `format` is ignored.
    JsonSchema(String),
    /// Regular expression for the whole text.
    Regex(String),
    /// `llguidance`'s dialect of Lark; the start rule is `start`.
    Lark(String),
}

/// Text of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenText<'a> {
    /// Ordinary text.
    Bytes(&'a [u8]),
    /// Name of a special token, like `<think>`: matched only by name.
    Special(&'a str),
    /// A token that is never matched.
    Unused,
}

impl GrammarSource {
    /// The text.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Gbnf(text) | Self::JsonSchema(text) | Self::Regex(text) | Self::Lark(text) => {
                text
            }
        }
    }

    /// Name of the language, for errors.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Gbnf(_) => "GBNF",
            Self::JsonSchema(_) => "JSON schema",
            Self::Regex(_) => "regular expression",
            Self::Lark(_) => "Lark",
        }
    }
}
