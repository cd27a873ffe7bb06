//! Merge loop of byte-pair encoding in `O(n log n)`.
//!
//! A piece starts as its smallest symbols; the adjacent pair with the lowest rank is merged, the
//! leftmost first among equals, until no pair has a rank. Candidate pairs are in a heap and symbols
//! form a linked list, so a piece of n symbols costs O(n log n) however it merges.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// One symbol: the bytes `start..start + len` of the piece.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Symbol {
    pub(crate) id: u32,
    pub(crate) start: u32,
    pub(crate) len: u32,
    prev: u32,
    next: u32,
}

/// No neighbour.
const NONE: u32 = u32::MAX;

/// A possible merge, ordered by rank, then by place. `len` (of the merged bytes) tells a stale
/// entry from a live one: the bytes a symbol covers determine its id.
type Candidate = Reverse<(u32, u32, u32, u32)>;

/// Scratch memory of the merge loop, reused for each piece.
#[derive(Debug, Default)]
pub(crate) struct Merger {
    symbols: Vec<Symbol>,
    heap: BinaryHeap<Candidate>,
}

impl Merger {
    /// Merges a piece given as (id, length in bytes) of its smallest symbols. `ranked` gives the
    /// rank of a pair of neighbours and the id of their merge.
    ///
    /// The symbols that remain, in order. A piece longer than `u32::MAX` bytes is cut there.
    pub(crate) fn merge(
        &mut self,
        smallest: impl Iterator<Item = (u32, u32)>,
        ranked: impl Fn(Symbol, Symbol) -> Option<(u32, u32)>,
    ) -> impl Iterator<Item = Symbol> {
        self.symbols.clear();
        self.heap.clear();
        let mut start = 0u32;
        for (id, len) in smallest {
            let Some(end) = start.checked_add(len) else { break };
            let index = self.symbols.len() as u32;
            let prev = index.checked_sub(1).unwrap_or(NONE);
            self.symbols.push(Symbol { id, start, len, prev, next: index + 1 });
            start = end;
        }
        if let Some(last) = self.symbols.last_mut() {
            last.next = NONE;
        }
        let mut seeds = std::mem::take(&mut self.heap).into_vec();
        seeds.extend((0..self.symbols.len() as u32).filter_map(|at| self.candidate(at, &ranked)));
        self.heap = BinaryHeap::from(seeds);
        while let Some(Reverse((_, left, len, id))) = self.heap.pop() {
            self.apply(left, len, id, &ranked);
        }
        self.symbols.iter().filter(|symbol| symbol.len > 0).copied()
    }

    /// Merges the symbol `left` with its neighbour, unless the candidate is stale.
    fn apply(
        &mut self,
        left: u32,
        len: u32,
        id: u32,
        ranked: &impl Fn(Symbol, Symbol) -> Option<(u32, u32)>,
    ) {
        let at = left as usize;
        let Symbol { next: right, len: left_len, prev, start, .. } = self.symbols[at];
        // `len` 0 marks a symbol swallowed by its left neighbour.
        if left_len == 0 || right == NONE || left_len + self.symbols[right as usize].len != len {
            return;
        }
        let next = self.symbols[right as usize].next;
        self.symbols[right as usize].len = 0;
        self.symbols[at] = Symbol { id, start, len, prev, next };
        if next != NONE {
            self.symbols[next as usize].prev = left;
        }
        let after = self.candidate(left, ranked);
        let before = if prev == NONE { None } else { self.candidate(prev, ranked) };
        self.heap.extend(after.into_iter().chain(before));
    }

    fn candidate(
        &self,
        left: u32,
        ranked: &impl Fn(Symbol, Symbol) -> Option<(u32, u32)>,
    ) -> Option<Candidate> {
        let symbol = self.symbols[left as usize];
        let neighbour = *self.symbols.get(symbol.next as usize)?;
        let (rank, id) = ranked(symbol, neighbour)?;
        Some(Reverse((rank, left, symbol.len + neighbour.len, id)))
    }
}
