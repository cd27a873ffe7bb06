//! SentencePiece's score-driven merging (`tokenizer.ggml.model` `llama`).
//!
//! Neighbours merge into the token with the highest score; symbols that are no token in the end
//! become byte tokens. Source: `llm_tokenizer_spm_session` of llama.cpp `src/llama-vocab.cpp`.

use super::tokens::Tokens;
use super::{GgmlVocabulary, byte_token_text};
use crate::merge::Merger;

/// Symbol of a character that is no token.
const NO_TOKEN: u32 = u32::MAX;

/// Vocabulary for the merge loop.
#[derive(Debug, Clone)]
pub(super) struct Scored {
    /// Ranks of the scores, highest score first, by id.
    ranks: Vec<u32>,
    byte_ids: Vec<Option<u32>>,
    longest: usize,
}

impl Scored {
    pub(super) fn new(vocabulary: &GgmlVocabulary<'_>, tokens: &Tokens, unk: Option<u32>) -> Self {
        let byte_id = |byte: u8| {
            let fallback = || byte.is_ascii().then(|| char::from(byte).to_string());
            let by_name = tokens.id(&byte_token_text(byte));
            by_name.or_else(|| tokens.id(&fallback()?)).or(unk)
        };
        Self {
            ranks: tokens.ids().map(|id| descending(vocabulary.score(id))).collect(),
            byte_ids: (0..=u8::MAX).map(byte_id).collect(),
            longest: tokens.longest(),
        }
    }

    /// Appends the tokens of `text`, in which spaces are already escaped, to `out`.
    pub(super) fn encode(&self, tokens: &Tokens, text: &str, out: &mut Vec<u32>) {
        let mut merger = Merger::default();
        let characters = text.char_indices().map(|(at, c)| {
            let len = c.len_utf8();
            (tokens.id(&text[at..at + len]).unwrap_or(NO_TOKEN), len as u32)
        });
        let merged = merger.merge(characters, |left, right| {
            let range = left.start as usize..(right.start + right.len) as usize;
            if range.len() > self.longest {
                return None;
            }
            let id = tokens.id(&text[range])?;
            Some((self.ranks[id as usize], id))
        });
        for symbol in merged {
            if symbol.id != NO_TOKEN {
                out.push(symbol.id);
                continue;
            }
            let range = symbol.start as usize..(symbol.start + symbol.len) as usize;
            let bytes = text[range].bytes();
            out.extend(bytes.filter_map(|byte| self.byte_ids[usize::from(byte)]));
        }
    }
}

/// Maps a score to an integer in reverse order: the highest score has the lowest rank.
fn descending(score: f32) -> u32 {
    // -0.0 equals 0.0 in a comparison of scores.
    let bits = (score + 0.0).to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    !ascending
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn higher_scores_come_first() {
        let scores = [f32::INFINITY, 3.5, 1.0, 1e-40, 0.0, -1e-40, -2.0, -1e30, f32::NEG_INFINITY];
        assert!(scores.is_sorted_by(|&a, &b| descending(a) < descending(b)));
        assert_eq!(descending(0.0), descending(-0.0));
    }
}
