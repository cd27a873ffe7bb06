//! Byte-level BPE over the vocabularies of speech models and `tokenizer.json`.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use aho_corasick::MatchKind;
use aho_corasick::automaton::Automaton;
use aho_corasick::nfa::contiguous::NFA;

use crate::bpe::{Bpe, MergeRule};
use crate::error::{Error, Result};
use crate::merge::Merger;
use crate::pretokenize::split_gpt2;
use crate::token_model::TokenModel;
use crate::vocab::Vocab;

/// Ordinary tokens stand for bytes and come out of merging; added ones are matched as a whole.
#[derive(Debug, Clone)]
pub(crate) struct ByteLevel {
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
    /// Not `AhoCorasick`, which links every kind of automaton.
    finder: NFA,
    ids: Vec<u32>,
}

impl ByteLevel {
    /// A ranked vocabulary: the bytes of each token in id order, where the id is also the merge
    /// rank (whisper.cpp `.bin` files; OpenAI's `.tiktoken` files once decoded). It names no
    /// special tokens: add them with [`with_special`](Self::with_special). Empty entries only
    /// hold their id.
    pub(crate) fn from_ranked<T: AsRef<[u8]>>(tokens: &[T]) -> Result<Self> {
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

    /// Names special tokens by id, in addition to those of the file or in their place.
    ///
    /// # Errors
    /// If a text is empty, or an id was the only token of a byte.
    pub(crate) fn with_special(
        mut self,
        tokens: impl IntoIterator<Item = (u32, String)>,
    ) -> Result<Self> {
        let named = tokens.into_iter().map(|(id, text)| (id, Added { text, special: true }));
        self.added.extend(named);
        Self::assemble(self.vocab, self.bpe.into_rule(), self.added)
    }

    fn encode(&self, text: &str, parse_special: bool) -> Vec<u32> {
        let cell = if parse_special { &self.matchers.all } else { &self.matchers.not_special };
        self.encode_around(text, self.matcher(cell, parse_special))
    }

    fn encode_around(&self, text: &str, matcher: Option<&Matcher>) -> Vec<u32> {
        let mut ids = Vec::new();
        encode_between(text, matcher, &mut ids, |part, ids| self.encode_plain(part, ids));
        ids
    }

    fn encode_plain(&self, text: &str, ids: &mut Vec<u32>) {
        let mut merger = Merger::default();
        split_gpt2(text, |piece| {
            self.bpe.encode_piece(&self.vocab, piece.as_bytes(), &mut merger, ids);
        });
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
            let finder = NFA::builder().match_kind(MatchKind::LeftmostLongest).build(&texts);
            // Building fails only past 2^31 pattern bytes; then no added token is matched.
            finder.ok().map(|finder| Matcher { finder, ids })
        })
        .as_ref()
    }
}

impl TokenModel for ByteLevel {
    fn tokenize(&self, text: &str, _add_special: bool, parse_special: bool) -> Vec<u32> {
        self.encode(text, parse_special)
    }

    fn tokenize_marked(&self, text: &str, marker: &str, _add_special: bool) -> Vec<u32> {
        let mut ids = Vec::new();
        let all = self.matcher(&self.matchers.all, true);
        encode_between(text, all, &mut ids, |part, ids| {
            if part.contains(marker) {
                ids.extend(self.encode(&part.replace(marker, ""), false));
            } else {
                self.encode_plain(part, ids);
            }
        });
        ids
    }

    fn piece(&self, id: u32, with_special: bool) -> &[u8] {
        let bytes = match self.added.get(&id) {
            Some(token) if with_special || !token.special => Some(token.text.as_bytes()),
            Some(_) => None,
            None => self.vocab.bytes(id),
        };
        bytes.unwrap_or_default()
    }

    fn bytes(&self, id: u32) -> Option<&[u8]> {
        self.added.get(&id).map(|token| token.text.as_bytes()).or_else(|| self.vocab.bytes(id))
    }

    fn token_id(&self, text: &str) -> Option<u32> {
        let added = self.added.iter().find(|(_, added)| added.text == text).map(|(&id, _)| id);
        added.or_else(|| self.vocab.id(text.as_bytes()))
    }

    fn strips_first_space(&self) -> bool {
        false
    }

    fn is_special(&self, id: u32) -> bool {
        self.added.get(&id).is_some_and(|token| token.special)
    }

    fn is_control(&self, id: u32) -> bool {
        self.is_special(id)
    }

    fn specials(&self) -> Box<dyn Iterator<Item = (u32, &str)> + '_> {
        let special = self.added.iter().filter(|(_, token)| token.special);
        Box::new(special.map(|(&id, token)| (id, token.text.as_str())))
    }

    fn vocab_size(&self) -> usize {
        let added = self.added.last_key_value().map_or(0, |(&id, _)| id as usize + 1);
        self.vocab.len().max(added)
    }

    fn adds_bos(&self, _bos: Option<u32>) -> bool {
        false
    }

    fn adds_eos(&self, _eos: Option<u32>) -> bool {
        false
    }
}

/// Adds the tokens that `matcher` finds, and what `encode` adds for the text between them.
fn encode_between(
    text: &str,
    matcher: Option<&Matcher>,
    ids: &mut Vec<u32>,
    mut encode: impl FnMut(&str, &mut Vec<u32>),
) {
    let mut start = 0;
    if let Some(Matcher { finder, ids: added_ids }) = matcher {
        // An automaton of this kind takes every search that is not anchored.
        for found in finder.try_find_iter(text.into()).into_iter().flatten() {
            encode(&text[start..found.start()], ids);
            ids.push(added_ids[found.pattern().as_usize()]);
            start = found.end();
        }
    }
    encode(&text[start..], ids);
}
