//! The public type: encode, decode, look up.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use aho_corasick::{AhoCorasick, MatchKind};

use crate::bpe::{Bpe, MergeRule};
use crate::error::{Error, Result};
use crate::pretokenize::split_gpt2;
use crate::vocab::Vocab;

/// A byte-level BPE tokenizer.
///
/// Two kinds of tokens: ordinary ones stand for bytes and come out of merging; *special* ones
/// (`<|en|>`) have a text of their own and steer the model. Special tokens are only produced by
/// [`encode_with_special`](Self::encode_with_special) and only shown by
/// [`decode_with_special`](Self::decode_with_special). A file may also name added tokens that are
/// not special: those are matched as a whole by both encoders and shown by every decoder.
///
/// ```
/// # fn main() -> stonechat_text::Result<()> {
/// // A vocabulary of the 256 bytes, one merge, and one special token.
/// let mut tokens: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
/// tokens.push(b"hi".to_vec());
/// let tokenizer =
///     stonechat_text::Tokenizer::from_ranked(&tokens)?.with_special([(300, "<|en|>".to_owned())])?;
/// assert_eq!(tokenizer.encode("hi!"), [256, 33]);
/// assert_eq!(tokenizer.encode_with_special("<|en|>hi"), [300, 256]);
/// assert_eq!(tokenizer.decode(&[300, 256, 33]), "hi!");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Tokenizer {
    vocab: Vocab,
    bpe: Bpe,
    added: BTreeMap<u32, Added>,
    matchers: Matchers,
}

/// A token matched as a whole.
#[derive(Debug, Clone)]
pub(crate) struct Added {
    pub(crate) text: String,
    pub(crate) special: bool,
}

/// Finders of added tokens, built when first needed: most callers never encode text.
#[derive(Debug, Clone, Default)]
struct Matchers {
    all: OnceLock<Option<Matcher>>,
    not_special: OnceLock<Option<Matcher>>,
}

#[derive(Debug, Clone)]
struct Matcher {
    finder: AhoCorasick,
    ids: Vec<u32>,
}

impl Tokenizer {
    /// A ranked vocabulary: the bytes of each token in id order, where the id is also the merge
    /// rank (whisper.cpp `.bin` files; OpenAI's `.tiktoken` files once decoded). It names no
    /// special tokens: add them with [`with_special`](Self::with_special). Empty entries only
    /// hold their id.
    ///
    /// # Errors
    /// If a byte has no token or there are more than `u32::MAX` tokens.
    pub fn from_ranked<T: AsRef<[u8]>>(tokens: &[T]) -> Result<Self> {
        let mut vocab = Vocab::with_capacity(tokens.len());
        for (index, token) in tokens.iter().enumerate() {
            let token = token.as_ref();
            let id = u32::try_from(index).map_err(|_| Error::IdOutOfRange {
                token: String::from_utf8_lossy(token).into_owned(),
                id: index as u64,
                limit: u64::from(u32::MAX),
            })?;
            vocab.insert(id, token)?;
        }
        Self::assemble(vocab, MergeRule::RankIsId, BTreeMap::new())
    }

    /// Puts the parts together; ids in `added` stop being ordinary tokens.
    pub(crate) fn assemble(
        mut vocab: Vocab,
        rule: MergeRule,
        added: BTreeMap<u32, Added>,
    ) -> Result<Self> {
        for (&id, token) in &added {
            if token.text.is_empty() {
                return Err(Error::EmptySpecial { id });
            }
            vocab.remove(id);
        }
        let bpe = Bpe::new(rule, vocab.byte_ids()?);
        Ok(Self { vocab, bpe, added, matchers: Matchers::default() })
    }

    /// Names special tokens by id, beyond or instead of what the file says.
    ///
    /// # Errors
    /// If a text is empty, or an id was the only token of a byte.
    pub fn with_special(mut self, tokens: impl IntoIterator<Item = (u32, String)>) -> Result<Self> {
        let named = tokens.into_iter().map(|(id, text)| (id, Added { text, special: true }));
        self.added.extend(named);
        Self::assemble(self.vocab, self.bpe.into_rule(), self.added)
    }

    /// Token ids of `text`, in which the text of a special token is ordinary text.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        self.encode_around(text, self.matcher(&self.matchers.not_special, false))
    }

    /// Token ids of `text`, in which the text of a special token becomes that token.
    pub fn encode_with_special(&self, text: &str) -> Vec<u32> {
        self.encode_around(text, self.matcher(&self.matchers.all, true))
    }

    fn encode_around(&self, text: &str, matcher: Option<&Matcher>) -> Vec<u32> {
        let mut ids = Vec::new();
        let mut start = 0;
        if let Some(Matcher { finder, ids: added_ids }) = matcher {
            for found in finder.find_iter(text) {
                self.encode_plain(&text[start..found.start()], &mut ids);
                ids.push(added_ids[found.pattern().as_usize()]);
                start = found.end();
            }
        }
        self.encode_plain(&text[start..], &mut ids);
        ids
    }

    fn encode_plain(&self, text: &str, ids: &mut Vec<u32>) {
        split_gpt2(text, |piece| self.bpe.encode_piece(&self.vocab, piece.as_bytes(), ids));
    }

    fn matcher<'m>(
        &self,
        cell: &'m OnceLock<Option<Matcher>>,
        with_special: bool,
    ) -> Option<&'m Matcher> {
        cell.get_or_init(|| {
            let (ids, texts): (Vec<u32>, Vec<&str>) = self
                .added
                .iter()
                .filter(|(_, token)| with_special || !token.special)
                .map(|(&id, token)| (id, token.text.as_str()))
                .unzip();
            if ids.is_empty() {
                return None;
            }
            let finder =
                AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&texts);
            // Building fails only past 2^31 pattern bytes; then no added token is matched.
            finder.ok().map(|finder| Matcher { finder, ids })
        })
        .as_ref()
    }

    /// Text of `ids` without special tokens. Ids without a token are skipped. Bytes that are not
    /// UTF-8 once all tokens are joined become U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        String::from_utf8_lossy(&self.decode_bytes(ids)).into_owned()
    }

    /// Like [`decode`](Self::decode), with special tokens shown as their text.
    pub fn decode_with_special(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> =
            ids.iter().filter_map(|&id| self.token_bytes(id)).flatten().copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The joined bytes of `ids` without special tokens.
    pub fn decode_bytes(&self, ids: &[u32]) -> Vec<u8> {
        ids.iter().filter_map(|&id| self.shown_bytes(id)).flatten().copied().collect()
    }

    /// The bytes a token adds to decoded text: none for special and unknown ids.
    pub(crate) fn shown_bytes(&self, id: u32) -> Option<&[u8]> {
        if self.is_special(id) { None } else { self.token_bytes(id) }
    }

    /// The bytes of a token (of a special token: its text), or `None` if the id has none.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        match self.added.get(&id) {
            Some(token) => Some(token.text.as_bytes()),
            None => self.vocab.bytes(id),
        }
    }

    /// The id of a special or added token with this text, else of the ordinary token with exactly
    /// these bytes.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        let added = self.added.iter().find(|(_, added)| added.text == token).map(|(&id, _)| id);
        added.or_else(|| self.vocab.id(token.as_bytes()))
    }

    /// Whether the id is a special token.
    pub fn is_special(&self, id: u32) -> bool {
        self.added.get(&id).is_some_and(|token| token.special)
    }

    /// The special tokens with their texts, by ascending id.
    pub fn specials(&self) -> impl Iterator<Item = (u32, &str)> {
        self.added
            .iter()
            .filter(|(_, token)| token.special)
            .map(|(&id, token)| (id, token.text.as_str()))
    }

    /// The highest id + 1, special tokens included. A model's embedding may have more rows.
    pub fn vocab_size(&self) -> usize {
        let added = self.added.last_key_value().map_or(0, |(&id, _)| id as usize + 1);
        self.vocab.len().max(added)
    }
}
