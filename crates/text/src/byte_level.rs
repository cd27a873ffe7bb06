//! Byte-level BPE over the vocabularies of speech models and `tokenizer.json`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

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
    /// GPT-2's pieces, if there is none.
    rules: Option<Arc<dyn TextRules>>,
    around: Around,
}

/// Treatment of text between added tokens.
///
/// A trait object, so that only programs that read other rules than GPT-2's link them.
pub(crate) trait TextRules: fmt::Debug + Send + Sync {
    /// The normalized text.
    fn normalized<'t>(&self, text: &'t str) -> Cow<'t, str>;

    /// Calls `piece` with each piece of a normalized text in order.
    fn split(&self, text: &str, piece: &mut dyn FnMut(&str));
}

/// Tokens around a text, where special tokens are asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Around {
    pub(crate) before: Vec<u32>,
    pub(crate) after: Vec<u32>,
}

/// A token matched as a whole.
#[derive(Debug, Clone)]
pub(crate) struct Added {
    pub(crate) text: String,
    pub(crate) special: bool,
    /// Matched in normalized text, after the tokens of the text as given.
    pub(crate) normalized: bool,
}

/// Finders of added tokens, built when first needed: most callers never encode text.
#[derive(Debug, Clone, Default)]
struct Matchers {
    as_given: OnceLock<Option<Matcher>>,
    normalized: OnceLock<Option<Matcher>>,
}

#[derive(Debug, Clone)]
struct Matcher {
    /// Not `AhoCorasick`, which links every kind of automaton.
    finder: NFA,
    /// Id of each pattern, and whether the token is special.
    tokens: Vec<(u32, bool)>,
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

    /// Puts the parts together; ids in `added` stop being ordinary tokens of a ranked vocabulary. A list of merges decides
    /// itself what it makes of them.
    pub(crate) fn assemble(
        mut vocab: Vocab,
        rule: MergeRule,
        added: BTreeMap<u32, Added>,
    ) -> Result<Self> {
        if let Some((&id, _)) = added.iter().find(|(_, token)| token.text.is_empty()) {
            return Err(Error::EmptySpecial { id });
        }
        if matches!(rule, MergeRule::RankIsId) {
            added.keys().for_each(|&id| vocab.remove(id));
        }
        let bpe = Bpe::new(rule, vocab.byte_ids())?;
        let (matchers, around) = (Matchers::default(), Around::default());
        Ok(Self { vocab, bpe, added, matchers, rules: None, around })
    }

    /// The same with other rules for text, and with tokens around it.
    pub(crate) fn with_text(self, rules: Option<Arc<dyn TextRules>>, around: Around) -> Self {
        Self { rules, around, ..self }
    }

    /// Names special tokens by id, in addition to those of the file or in their place.
    ///
    /// # Errors
    /// If a text is empty, or an id was the only token of a byte.
    pub(crate) fn with_special(
        mut self,
        tokens: impl IntoIterator<Item = (u32, String)>,
    ) -> Result<Self> {
        let special = |text| Added { text, special: true, normalized: false };
        self.added.extend(tokens.into_iter().map(|(id, text)| (id, special(text))));
        let assembled = Self::assemble(self.vocab, self.bpe.into_rule(), self.added)?;
        Ok(assembled.with_text(self.rules, self.around))
    }

    /// The first token before a text.
    pub(crate) fn bos(&self) -> Option<u32> {
        self.around.before.first().copied()
    }

    /// Adds the tokens of `text`; `plain` adds those of each part between added tokens.
    fn encode_parts(
        &self,
        text: &str,
        parse_special: bool,
        ids: &mut Vec<u32>,
        plain: &dyn Fn(&str, &mut Vec<u32>),
    ) {
        let as_given = self.matcher(&self.matchers.as_given, false);
        encode_between(text, as_given, parse_special, ids, |part, ids| {
            let part =
                self.rules.as_ref().map_or(Cow::Borrowed(part), |rules| rules.normalized(part));
            let normalized = self.matcher(&self.matchers.normalized, true);
            encode_between(&part, normalized, parse_special, ids, plain);
        });
    }

    fn encode(&self, text: &str, parse_special: bool, ids: &mut Vec<u32>) {
        self.encode_parts(text, parse_special, ids, &|part, ids| self.encode_plain(part, ids));
    }

    fn encode_plain(&self, text: &str, ids: &mut Vec<u32>) {
        let mut merger = Merger::default();
        let mut piece = |piece: &str| {
            self.bpe.encode_piece(&self.vocab, piece.as_bytes(), &mut merger, ids);
        };
        match &self.rules {
            Some(rules) => rules.split(text, &mut piece),
            None => split_gpt2(text, piece),
        }
    }

    /// The ids that `encode` adds, in the tokens around a text.
    fn surrounded(&self, add_special: bool, encode: impl FnOnce(&mut Vec<u32>)) -> Vec<u32> {
        let mut ids = Vec::new();
        if add_special {
            ids.extend(&self.around.before);
        }
        encode(&mut ids);
        if add_special {
            ids.extend(&self.around.after);
        }
        ids
    }

    fn matcher<'m>(
        &self,
        cell: &'m OnceLock<Option<Matcher>>,
        normalized: bool,
    ) -> Option<&'m Matcher> {
        cell.get_or_init(|| {
            let (tokens, texts): (Vec<(u32, bool)>, Vec<&str>) = self
                .added
                .iter()
                .filter(|(_, token)| token.normalized == normalized)
                .map(|(&id, token)| ((id, token.special), token.text.as_str()))
                .unzip();
            if tokens.is_empty() {
                return None;
            }
            let finder = NFA::builder().match_kind(MatchKind::LeftmostLongest).build(&texts);
            // Building fails only past 2^31 pattern bytes; then no added token is matched.
            finder.ok().map(|finder| Matcher { finder, tokens })
        })
        .as_ref()
    }
}

impl TokenModel for ByteLevel {
    fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Vec<u32> {
        self.surrounded(add_special, |ids| self.encode(text, parse_special, ids))
    }

    fn tokenize_marked(&self, text: &str, marker: &str, add_special: bool) -> Vec<u32> {
        self.surrounded(add_special, |ids| {
            self.encode_parts(text, true, ids, &|part, ids| {
                if part.contains(marker) {
                    self.encode(&part.replace(marker, ""), false, ids);
                } else {
                    self.encode_plain(part, ids);
                }
            });
        })
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
        let is_ordinary = |id: &u32| !self.added.contains_key(id);
        added.or_else(|| self.vocab.id_of_any(text.as_bytes()).filter(is_ordinary))
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

    fn adds_bos(&self, bos: Option<u32>) -> bool {
        bos.is_some() && self.around.before.first().copied() == bos
    }

    fn adds_eos(&self, eos: Option<u32>) -> bool {
        eos.is_some() && self.around.after.last().copied() == eos
    }
}

/// Adds the tokens that `matcher` finds, and what `encode` adds for the text between them. Special tokens that are not
/// parsed are text; they hide other tokens that overlap them, as in Hugging Face's encoder.
fn encode_between(
    text: &str,
    matcher: Option<&Matcher>,
    parse_special: bool,
    ids: &mut Vec<u32>,
    mut encode: impl FnMut(&str, &mut Vec<u32>),
) {
    let mut start = 0;
    if let Some(Matcher { finder, tokens }) = matcher {
        // An automaton of this kind takes every search that is not anchored.
        for found in finder.try_find_iter(text.into()).into_iter().flatten() {
            let (id, is_special) = tokens[found.pattern().as_usize()];
            if is_special && !parse_special {
                continue;
            }
            encode(&text[start..found.start()], ids);
            ids.push(id);
            start = found.end();
        }
    }
    encode(&text[start..], ids);
}
