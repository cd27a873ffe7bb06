//! Interface between [`Tokenizer`](crate::Tokenizer) and the kinds of vocabulary.

use std::fmt;

/// Text to token ids and back, for one kind of vocabulary.
///
/// A trait object, not an enum: a program links only the kinds that it can open. A binary for speech in a browser has no
/// pre-tokenizers of language models.
pub(crate) trait TokenModel: fmt::Debug + Send + Sync {
    /// Token ids of `text`, as llama.cpp's `llama_tokenize` gives them.
    fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Vec<u32>;

    /// Token ids of `text`, in which special tokens with `marker` in them are ordinary text.
    fn tokenize_marked(&self, text: &str, marker: &str, add_special: bool) -> Vec<u32>;

    /// Decoded bytes of a token: none for unknown ids, and for special tokens only if `with_special`.
    fn piece(&self, id: u32, with_special: bool) -> &[u8];

    /// The bytes of a token (of a special token: its text), if the id has one.
    fn bytes(&self, id: u32) -> Option<&[u8]>;

    /// The special or added token with this text, else the ordinary token with exactly these bytes.
    fn token_id(&self, text: &str) -> Option<u32>;

    /// Whether the first token of decoded text loses a leading space.
    fn strips_first_space(&self) -> bool;

    /// Whether the token is only matched and shown where special tokens are asked for.
    fn is_special(&self, id: u32) -> bool;

    /// Whether the token is special and not the unknown token.
    fn is_control(&self, id: u32) -> bool;

    /// The special tokens with their texts, by ascending id.
    fn specials(&self) -> Box<dyn Iterator<Item = (u32, &str)> + '_>;

    /// The highest id + 1, special tokens included.
    fn vocab_size(&self) -> usize;

    /// Whether text starts with `bos` where special tokens are added.
    fn adds_bos(&self, bos: Option<u32>) -> bool;

    /// Whether text ends with `eos` where special tokens are added.
    fn adds_eos(&self, eos: Option<u32>) -> bool;
}
