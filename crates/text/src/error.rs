//! The errors of this crate: vocabularies and chat templates.

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A vocabulary or chat template that cannot be used, with expected and got.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes are not the JSON that this format consists of.
    #[error("{format}: expected {expected}: {source}")]
    Json {
        /// The file format.
        format: &'static str,
        /// The shape that was expected.
        expected: &'static str,
        /// The error of the JSON parser.
        source: serde_json::Error,
    },
    /// A text format is not UTF-8.
    #[error("{format}: expected UTF-8, got an invalid sequence at byte {offset}")]
    NotUtf8 {
        /// The file format.
        format: &'static str,
        /// Offset of the first invalid byte.
        offset: usize,
    },
    /// A part of the file that this crate does not implement.
    #[error("tokenizer.json: expected {expected}, got {got}")]
    Unsupported {
        /// The supported part.
        expected: &'static str,
        /// The part in the file.
        got: String,
    },
    /// An id too high for the size of the file or for the address space.
    #[error("token {token:?}: expected an id below {limit}, got {id}")]
    IdOutOfRange {
        /// The token's text.
        token: String,
        /// Id of the token in the file.
        id: u64,
        /// The first id that is refused.
        limit: u64,
    },
    /// Two tokens claim one id.
    #[error("token id {id}: expected one token, got {first:?} and {second:?}")]
    DuplicateId {
        /// The id.
        id: u32,
        /// The token read first.
        first: String,
        /// The other token.
        second: String,
    },
    /// A vocabulary in which ids are ranks needs a token for each of the 256 bytes.
    #[error("expected a token for each of 256 bytes, got none for byte 0x{byte:02x}")]
    MissingByte {
        /// The first byte without a token.
        byte: u8,
    },
    /// A merge rule names a token that the vocabulary lacks.
    #[error("merge {index}: expected a token of the vocabulary, got {token:?}")]
    MergeToken {
        /// Position of the rule in the file.
        index: usize,
        /// The missing token, as written in the file.
        token: String,
    },
    /// A merge rule is not two tokens.
    #[error("merge {index}: expected two tokens separated by one space, got {got:?}")]
    MergeShape {
        /// Position of the rule in the file.
        index: usize,
        /// The rule as written in the file.
        got: String,
    },
    /// A special token with no text could match anywhere.
    #[error("special token {id}: expected text, got an empty string")]
    EmptySpecial {
        /// Id of the token.
        id: u32,
    },
    /// A kind of vocabulary (`tokenizer.ggml.model`) that is not implemented.
    #[error(
        "tokenizer.ggml.model: expected gpt2, gemma4, whitespace, llama, bert or t5, got {model:?}"
    )]
    UnknownVocabulary {
        /// The kind in the file.
        model: String,
    },
    /// A pre-tokenizer (`tokenizer.ggml.pre`) that is not known.
    #[error("tokenizer.ggml.pre: expected the name of a pre-tokenizer, got {name:?}")]
    UnknownPreTokenizer {
        /// The name in the file.
        name: String,
    },
    /// A list that should have an entry for each token.
    #[error("tokenizer.ggml.{list}: expected at least {expected} entries, got {got}")]
    ListLength {
        /// The list.
        list: &'static str,
        /// The number of tokens.
        expected: usize,
        /// The number of its entries.
        got: usize,
    },
    /// A list with more text than 32-bit offsets reach.
    #[error("tokenizer.ggml.{list}: expected less than 4 GiB of text, got {got} bytes")]
    TextLength {
        /// The list.
        list: &'static str,
        /// Length of the list's texts in bytes, as held in memory.
        got: u64,
    },
    /// A unigram vocabulary without an unknown token.
    #[error("expected an unknown token, got none")]
    NoUnknownToken,
    /// A character map that is shorter than it says.
    #[error(
        "tokenizer.ggml.precompiled_charsmap: expected a trie and replacements, got {got} bytes"
    )]
    CharacterMap {
        /// Length of the character map in bytes.
        got: usize,
    },
    /// A chat template that does not compile, fails, or takes too much.
    #[error("chat template, line {line}: {reason}")]
    ChatTemplate {
        /// Line of the template, from 1; 0 if it is not known.
        line: usize,
        /// The error at that line.
        reason: String,
    },
    /// The template itself refuses the conversation through `raise_exception`.
    #[error("chat template, line {line}: refused: {message}")]
    ChatRefused {
        /// Line of the template, from 1; 0 if it is not known.
        line: usize,
        /// The argument of `raise_exception`.
        message: String,
    },
    /// No built-in chat template has this name.
    #[error("chat template {name:?}: expected one of {expected}")]
    UnknownChatTemplate {
        /// The unknown name.
        name: String,
        /// The known names.
        expected: String,
    },
}
