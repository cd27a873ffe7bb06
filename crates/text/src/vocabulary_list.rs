//! CTranslate2's vocabularies: the tokens in id order, in GPT-2's printable form, special tokens
//! included; one per line (`vocabulary.txt`) or as a JSON array (`vocabulary.json`).
//!
//! Neither carries merges, so the id is the merge rank. Neither marks special tokens, so they are
//! told by their shape, `<|…|>`, which no learned token has.

use std::collections::BTreeMap;

use crate::bpe::MergeRule;
use crate::byte_level::{Added, ByteLevel};
use crate::byte_map::{printable, token_bytes};
use crate::error::{Error, Result};
use crate::tokenizer::Tokenizer;
use crate::vocab::Vocab;

impl Tokenizer {
    /// Reads tokens in id order and GPT-2's printable form, as GGUF's `tokenizer.ggml.tokens` and
    /// CTranslate2's lists hold them.
    ///
    /// # Errors
    /// If a byte has no token.
    pub fn from_vocabulary<T: AsRef<str>>(tokens: &[T]) -> Result<Self> {
        from_tokens(tokens.iter().map(AsRef::as_ref))
    }

    /// The entry of token `id` in such a list; special tokens stand as they are.
    #[must_use]
    pub fn vocabulary_entry(&self, id: u32) -> Option<String> {
        let bytes = self.token_bytes(id)?;
        Some(if self.is_special(id) {
            String::from_utf8_lossy(bytes).into_owned()
        } else {
            printable(bytes)
        })
    }

    /// Reads a CTranslate2 `vocabulary.txt`.
    ///
    /// # Errors
    /// If it is not UTF-8 or a byte has no token.
    pub fn from_vocabulary_txt(bytes: &[u8]) -> Result<Self> {
        let text = std::str::from_utf8(bytes).map_err(|error| Error::NotUtf8 {
            format: "vocabulary.txt",
            offset: error.valid_up_to(),
        })?;
        // `str::lines` would also strip a carriage return, which no printable form contains.
        from_tokens(text.strip_suffix('\n').unwrap_or(text).split('\n'))
    }

    /// Reads a CTranslate2 `vocabulary.json`.
    ///
    /// # Errors
    /// If it is not a JSON array of strings or a byte has no token.
    pub fn from_vocabulary_json(bytes: &[u8]) -> Result<Self> {
        let tokens: Vec<String> = serde_json::from_slice(bytes).map_err(|source| Error::Json {
            format: "vocabulary.json",
            expected: "an array of strings",
            source,
        })?;
        Self::from_vocabulary(&tokens)
    }
}

fn from_tokens<'t>(tokens: impl Iterator<Item = &'t str>) -> Result<Tokenizer> {
    let mut vocab = Vocab::default();
    let mut added = BTreeMap::new();
    for (index, token) in tokens.enumerate() {
        let id = u32::try_from(index).map_err(|_| Error::IdOutOfRange {
            token: token.to_owned(),
            id: index as u64,
            limit: u64::from(u32::MAX),
        })?;
        if looks_special(token) {
            added.insert(id, Added { text: token.to_owned(), special: true, normalized: false });
        } else {
            vocab.insert(id, &token_bytes(token))?;
        }
    }
    Ok(ByteLevel::assemble(vocab, MergeRule::RankIsId, added)?.into())
}

fn looks_special(token: &str) -> bool {
    token
        .strip_prefix("<|")
        .and_then(|rest| rest.strip_suffix("|>"))
        .is_some_and(|name| !name.is_empty())
}
