//! Byte-level byte-pair encoding of one piece of text.
//!
//! A piece starts as single bytes; the adjacent pair with the lowest rank is merged, the leftmost
//! first among equals, until no pair has a rank. Pairs wait in a heap and symbols form a linked
//! list, so a piece of n bytes costs O(n log n) however it merges.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use crate::vocab::Vocab;

/// Where the rank of a pair comes from.
#[derive(Debug, Clone)]
pub(crate) enum MergeRule {
    /// The rank of a pair is the id of the token that its bytes form, as tiktoken does with a
    /// ranked vocabulary. A piece that is itself a token needs no merging.
    RankIsId,
    /// An explicit list of merges: (left id, right id) to (rank, merged id), as in Hugging Face's
    /// files. `whole_pieces`: a piece that is itself a token needs no merging (`ignore_merges`).
    Pairs { pairs: HashMap<(u32, u32), (u32, u32)>, whole_pieces: bool },
}

/// One symbol of the linked list: the bytes `start..start + len` of the piece.
#[derive(Clone, Copy)]
struct Symbol {
    id: u32,
    len: usize,
    prev: usize,
    next: usize,
}

/// No neighbour.
const NONE: usize = usize::MAX;

/// A possible merge, ordered by rank, then by place. `len` (of the merged bytes) tells a stale
/// entry from a live one: the bytes a symbol covers determine its id.
type Candidate = Reverse<(u32, usize, usize, u32)>;

/// The merge engine: a vocabulary's rule and its single-byte tokens.
#[derive(Debug, Clone)]
pub(crate) struct Bpe {
    rule: MergeRule,
    byte_ids: [u32; 256],
}

impl Bpe {
    pub(crate) fn new(rule: MergeRule, byte_ids: [u32; 256]) -> Self {
        Self { rule, byte_ids }
    }

    pub(crate) fn into_rule(self) -> MergeRule {
        self.rule
    }

    /// Appends the tokens of `piece` to `out`.
    pub(crate) fn encode_piece(&self, vocab: &Vocab, piece: &[u8], out: &mut Vec<u32>) {
        let whole_pieces = match &self.rule {
            MergeRule::RankIsId => true,
            MergeRule::Pairs { whole_pieces, .. } => *whole_pieces,
        };
        if whole_pieces && let Some(id) = vocab.id(piece) {
            out.push(id);
            return;
        }
        let mut symbols: Vec<Symbol> = piece
            .iter()
            .enumerate()
            .map(|(i, &byte)| Symbol {
                id: self.byte_ids[usize::from(byte)],
                len: 1,
                prev: i.checked_sub(1).unwrap_or(NONE),
                next: if i + 1 < piece.len() { i + 1 } else { NONE },
            })
            .collect();
        let mut heap = BinaryHeap::new();
        for left in 0..symbols.len() {
            self.push_candidate(vocab, piece, &symbols, left, &mut heap);
        }
        while let Some(Reverse((_, left, len, id))) = heap.pop() {
            let Symbol { next: right, len: left_len, prev, .. } = symbols[left];
            // `len` 0 marks a symbol swallowed by its left neighbour.
            if left_len == 0 || right == NONE || left_len + symbols[right].len != len {
                continue;
            }
            let next = symbols[right].next;
            symbols[right].len = 0;
            symbols[left] = Symbol { id, len, prev, next };
            if next != NONE {
                symbols[next].prev = left;
            }
            self.push_candidate(vocab, piece, &symbols, left, &mut heap);
            if prev != NONE {
                self.push_candidate(vocab, piece, &symbols, prev, &mut heap);
            }
        }
        out.extend(symbols.iter().filter(|symbol| symbol.len > 0).map(|symbol| symbol.id));
    }

    fn push_candidate(
        &self,
        vocab: &Vocab,
        piece: &[u8],
        symbols: &[Symbol],
        left: usize,
        heap: &mut BinaryHeap<Candidate>,
    ) {
        let right = symbols[left].next;
        if right == NONE {
            return;
        }
        let len = symbols[left].len + symbols[right].len;
        let ranked = match &self.rule {
            MergeRule::RankIsId => vocab.id(&piece[left..left + len]).map(|id| (id, id)),
            MergeRule::Pairs { pairs, .. } => {
                pairs.get(&(symbols[left].id, symbols[right].id)).copied()
            }
        };
        if let Some((rank, id)) = ranked {
            heap.push(Reverse((rank, left, len, id)));
        }
    }
}
