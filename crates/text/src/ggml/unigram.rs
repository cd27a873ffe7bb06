//! Unigram (`tokenizer.ggml.model` `t5`): the most likely way to cover a text with tokens.
//!
//! Source: `llm_tokenizer_ugm_session` of llama.cpp `src/llama-vocab.cpp`, which follows
//! SentencePiece: Viterbi search over the bytes of the text.

use super::attributes::Attributes;
use super::index::Index;
use super::tokens::Tokens;
use super::{ESCAPED_SPACE, Flags, GgmlVocabulary};
use crate::error::{Error, Result};

/// Score of an unknown character, relative to the lowest score of a token.
const UNKNOWN_PENALTY: f32 = 10.0;

/// Vocabulary for the Viterbi search.
#[derive(Debug, Clone)]
pub(super) struct Unigram {
    /// The tokens that cover text, by their text.
    index: Index,
    /// Scores by id, user-defined tokens at 0.
    scores: Vec<f32>,
    longest: usize,
    user_defined: Vec<u32>,
    unknown_score: f64,
    unk: u32,
    normalizer: Normalizer,
    add_space_prefix: bool,
    merges_spaces: bool,
}

impl Unigram {
    pub(super) fn new(
        vocabulary: &GgmlVocabulary<'_>,
        tokens: &Tokens,
        unk: Option<u32>,
        flags: Flags,
    ) -> Result<Self> {
        let mut index = Index::with_capacity(tokens.len());
        let mut scores = Vec::with_capacity(tokens.len());
        let mut user_defined = Vec::new();
        let mut lowest = f32::MAX;
        let mut longest = 0;
        let covers = Attributes::NORMAL.with(Attributes::USER_DEFINED).with(Attributes::UNUSED);
        for id in tokens.ids() {
            let (attributes, score) = (tokens.attributes(id), vocabulary.score(id));
            if attributes.any(Attributes::NORMAL) {
                lowest = lowest.min(score);
            }
            let is_user_defined = attributes.any(Attributes::USER_DEFINED);
            if is_user_defined {
                user_defined.push(id);
            }
            scores.push(if is_user_defined { 0.0 } else { score });
            if attributes.any(covers) {
                index.insert(tokens.texts(), id);
                longest = longest.max(tokens.texts().get(id).len());
            }
        }
        Ok(Self {
            index,
            longest,
            scores,
            user_defined,
            unknown_score: f64::from(lowest - UNKNOWN_PENALTY),
            unk: unk.ok_or(Error::NoUnknownToken)?,
            normalizer: Normalizer::new(&vocabulary.precompiled_charsmap)?,
            add_space_prefix: flags.add_space_prefix,
            merges_spaces: vocabulary.remove_extra_whitespaces.unwrap_or(false),
        })
    }

    /// Appends the tokens of `text` to `out`.
    pub(super) fn encode(&self, tokens: &Tokens, text: &str, out: &mut Vec<u32>) {
        let text = self.normalized(tokens, text);
        // Best segmentation up to each byte: its score, its last token and the start of that token.
        let mut best = vec![(f64::MIN, self.unk, 0); text.len() + 1];
        best[0].0 = 0.0;
        for (at, c) in text.char_indices() {
            let (score, ..) = best[at];
            let after = at + c.len_utf8();
            let mut covered = false;
            for end in after..=text.len().min(at + self.longest) {
                let covering = self.index.find(tokens.texts(), &text.as_bytes()[at..end]);
                let Some(id) = covering else { continue };
                let own = f64::from(self.scores[id as usize]);
                covered |= end == after;
                if score + own > best[end].0 {
                    best[end] = (score + own, id, at);
                }
            }
            if !covered && score + self.unknown_score > best[after].0 {
                best[after] = (score + self.unknown_score, self.unk, at);
            }
        }
        let n_before = out.len();
        let mut at = text.len();
        while at > 0 {
            let (_, id, start) = best[at];
            // A run of unknown characters is one unknown token.
            if id != self.unk || out.len() == n_before || out.last() != Some(&self.unk) {
                out.push(id);
            }
            at = start;
        }
        out[n_before..].reverse();
    }

    /// The text with its characters mapped and its spaces escaped.
    fn normalized(&self, tokens: &Tokens, text: &str) -> String {
        let mut normalized = String::with_capacity(text.len() + ESCAPED_SPACE.len());
        let (mut has_prefix, mut in_word) = (false, false);
        let mut rest = text;
        while !rest.is_empty() {
            let (mapped, consumed) = self.normalized_prefix(tokens, rest);
            for c in mapped.chars() {
                if c == ' ' {
                    in_word = false;
                    if !self.merges_spaces {
                        normalized.push_str(ESCAPED_SPACE);
                    }
                    continue;
                }
                if !in_word {
                    in_word = true;
                    if (self.add_space_prefix && !has_prefix) || self.merges_spaces {
                        normalized.push_str(ESCAPED_SPACE);
                        has_prefix = true;
                    }
                }
                normalized.push(c);
            }
            rest = &rest[consumed..];
        }
        normalized
    }

    /// Replacement of the start of `text`, and the bytes of `text` that it replaces.
    fn normalized_prefix<'t>(&'t self, tokens: &Tokens, text: &'t str) -> (&'t str, usize) {
        // As in llama.cpp, the start of a user-defined token is enough to be left alone.
        let in_common = |token: &[u8]| {
            token.iter().zip(text.as_bytes()).take_while(|(own, byte)| own == byte).count()
        };
        let user_defined = self.user_defined.iter().map(|&id| tokens.texts().get(id));
        let kept = user_defined.map(in_common).max().unwrap_or(0);
        let kept = text.floor_char_boundary(kept);
        if kept > 0 {
            return (&text[..kept], kept);
        }
        if let Some(found) = self.normalizer.longest_prefix(text) {
            return found;
        }
        let len = text.chars().next().map_or(0, char::len_utf8);
        (&text[..len], len)
    }
}

/// SentencePiece's character map: a double-array trie of the replaced texts, then the replacements,
/// each ended by a zero byte.
#[derive(Debug, Clone, Default)]
struct Normalizer {
    nodes: Vec<u32>,
    replacements: Vec<u8>,
}

impl Normalizer {
    fn new(map: &[u8]) -> Result<Self> {
        if map.is_empty() {
            return Ok(Self::default());
        }
        let damaged = || Error::CharacterMap { got: map.len() };
        let (size, rest) = map.split_first_chunk::<4>().ok_or_else(damaged)?;
        let size = u32::from_le_bytes(*size) as usize;
        if size >= rest.len() {
            return Err(damaged());
        }
        let (nodes, replacements) = rest.split_at(size);
        let nodes =
            nodes.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        Ok(Self { nodes, replacements: replacements.to_vec() })
    }

    /// The replacement of the longest mapped prefix of `text`, and the prefix's length. Nothing
    /// where the map is damaged.
    fn longest_prefix(&self, text: &str) -> Option<(&str, usize)> {
        let base = |node: u32| (node >> 10) << ((node & (1 << 9)) >> 6);
        let mut found = None;
        let mut at = base(*self.nodes.first()?);
        for (index, &byte) in text.as_bytes().iter().enumerate() {
            at ^= u32::from(byte);
            let Some(&node) = self.nodes.get(at as usize) else { break };
            if byte == 0 || node & (1 << 31 | 0xFF) != u32::from(byte) {
                break;
            }
            at ^= base(node);
            // A leaf's base points to the place of its replacement.
            if node >> 8 & 1 == 1 {
                let value = self.nodes.get(at as usize)? & !(1 << 31);
                found = Some((value as usize, index + 1));
            }
        }
        let (place, len) = found?;
        let replacement = self.replacements.get(place..)?;
        let end = replacement.iter().position(|&byte| byte == 0)?;
        let replacement = std::str::from_utf8(&replacement[..end]).ok()?;
        text.is_char_boundary(len).then_some((replacement, len))
    }
}
