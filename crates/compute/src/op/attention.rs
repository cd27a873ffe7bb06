//! Attention: rows of queries and the arguments of the op.

use std::fmt;

use super::{PoolId, Weight};

/// Pages and visible positions of one query row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueryRow {
    /// Index of the sequence's first page in the page table.
    pub first_page: u32,
    /// Number of pages of the sequence.
    pub n_pages: u32,
    /// First visible position: 0, or where a sliding window begins.
    pub kv_start: u32,
    /// One past the last visible position: `pos + 1` for causal attention.
    pub kv_len: u32,
}

impl QueryRow {
    /// Whether both rows have the same pages, as rows of one sequence do.
    pub(crate) fn has_pages_of(&self, other: &Self) -> bool {
        (self.first_page, self.n_pages) == (other.first_page, other.n_pages)
    }
}

/// A list of pages and visible positions in a step: what the query rows of an attention see.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RowTable {
    index: usize,
    name: &'static str,
}

impl RowTable {
    /// Lists of a step.
    pub const N: usize = 4;
    /// `[T]`: all earlier positions of the sequence.
    pub const FULL: Self = Self::new(0, "Full");
    /// `[T]`: the sliding window before the position.
    pub const WINDOW: Self = Self::new(1, "Window");

    /// List `index` of a step, `index < N`, and its name in the text of a program.
    ///
    /// # Panics
    /// If `index` is not below [`N`](Self::N).
    #[must_use]
    pub const fn new(index: usize, name: &'static str) -> Self {
        assert!(index < Self::N, "expected an index below RowTable::N");
        Self { index, name }
    }

    /// Index in a step.
    #[must_use]
    pub const fn index(self) -> usize {
        self.index
    }
}

impl fmt::Debug for RowTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Precision of the operands of `Q·Kᵀ` and `P·V` in prefill blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precision {
    /// f32.
    #[default]
    F32,
    /// Same as quantized matmuls: bf16 on AMX, else f32. With f32, a prompt in one batch gives the same bits as token by
    /// token.
    AsProducts,
    /// bf16 where it is faster than f32: AVX-512 BF16 and AMX.
    Bf16,
}

/// Arguments of [`Op::Attention`](super::Op::Attention). `W` holds values: a [`Weight`] in a program, or the memory of a
/// device.
#[derive(Debug, Clone, Copy)]
pub struct AttentionArgs<W = Weight> {
    /// The pool.
    pub pool: PoolId,
    /// Layer of the pool.
    pub layer: usize,
    /// Query heads `H`, a multiple of the KV heads `G`; head `h` reads KV head `h / (H / G)`.
    pub n_heads: usize,
    /// Factor of the scores, usually `1/sqrt(C)`.
    pub scale: f32,
    /// Soft cap: `cap * tanh(score / cap)`, before masking (Gemma 2).
    pub soft_cap: Option<f32>,
    /// `[H]`: `ALiBi` slopes. Adds `slope * (pos_k - pos_q)` to a score, `pos_q = kv_len - 1`.
    pub slopes: Option<W>,
    /// `[H]`: attention sinks, an extra logit per head in the softmax's denominator (gpt-oss).
    pub sinks: Option<W>,
    /// Pages and visible positions of the rows.
    pub rows: RowTable,
    /// Precision of the operands of `Q·Kᵀ` and `P·V` in prefill.
    pub precision: Precision,
}

impl<W> AttentionArgs<W> {
    /// Replaces the weights by those of a device.
    #[must_use]
    pub fn map<'a, V>(&'a self, values: impl Fn(&'a W) -> V) -> AttentionArgs<V> {
        let Self { pool, layer, n_heads, scale, soft_cap, rows, precision, .. } = *self;
        let [slopes, sinks] = [&self.slopes, &self.sinks].map(|w| w.as_ref().map(&values));
        AttentionArgs { pool, layer, n_heads, scale, soft_cap, slopes, sinks, rows, precision }
    }
}
