//! Byte-level byte-pair encoding of one piece of text.

use std::collections::HashMap;

use crate::error::{Error, Result};
use crate::merge::Merger;
use crate::vocab::Vocab;

/// Source of the rank of a pair.
#[derive(Debug, Clone)]
pub(crate) enum MergeRule {
    /// The rank of a pair is the id of the token that its bytes form, as tiktoken does with a
    /// ranked vocabulary. A piece that is itself a token needs no merging.
    RankIsId,
    /// An explicit list of merges: (left id, right id) to (rank, merged id), as in Hugging Face's
    /// files. `whole_pieces`: a piece that is itself a token needs no merging (`ignore_merges`).
    /// `unknown`: the token of a byte without one of its own; without it, such bytes are dropped.
    Pairs { pairs: HashMap<(u32, u32), (u32, u32)>, whole_pieces: bool, unknown: Option<u32> },
}

/// Merge rule and single-byte tokens of a vocabulary.
#[derive(Debug, Clone)]
pub(crate) struct Bpe {
    rule: MergeRule,
    byte_ids: [Option<u32>; 256],
}

impl Bpe {
    /// # Errors
    /// If a ranked vocabulary lacks a byte.
    pub(crate) fn new(rule: MergeRule, mut byte_ids: [Option<u32>; 256]) -> Result<Self> {
        match rule {
            MergeRule::RankIsId => {
                if let Some(byte) =
                    (0..=u8::MAX).find(|&byte| byte_ids[usize::from(byte)].is_none())
                {
                    return Err(Error::MissingByte { byte });
                }
            }
            MergeRule::Pairs { unknown, .. } => byte_ids = byte_ids.map(|id| id.or(unknown)),
        }
        Ok(Self { rule, byte_ids })
    }

    pub(crate) fn into_rule(self) -> MergeRule {
        self.rule
    }

    /// Appends the tokens of `piece` to `out`.
    pub(crate) fn encode_piece(
        &self,
        vocab: &Vocab,
        piece: &[u8],
        merger: &mut Merger,
        out: &mut Vec<u32>,
    ) {
        let whole_pieces = match &self.rule {
            MergeRule::RankIsId => true,
            MergeRule::Pairs { whole_pieces, .. } => *whole_pieces,
        };
        if whole_pieces && let Some(id) = vocab.id(piece) {
            out.push(id);
            return;
        }
        let bytes = piece.iter().filter_map(|&byte| Some((self.byte_ids[usize::from(byte)]?, 1)));
        match &self.rule {
            MergeRule::RankIsId => {
                let merged = merger.merge(bytes, |left, right| {
                    let range = left.start as usize..(right.start + right.len) as usize;
                    vocab.id(&piece[range]).map(|id| (id, id))
                });
                out.extend(merged.map(|symbol| symbol.id));
            }
            MergeRule::Pairs { pairs, .. } => {
                let merged =
                    merger.merge(bytes, |left, right| pairs.get(&(left.id, right.id)).copied());
                out.extend(merged.map(|symbol| symbol.id));
            }
        }
    }
}
