//! Where the bytes of a block go in a panel.

use stonechat_compute::DType;

use super::{PANEL_ROWS, Words};

/// Bytes of the largest block.
pub(super) const MAX_BLOCK_BYTES: usize = 210;

/// How a format's blocks become vectors.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) dtype: DType,
    pub(super) block_bytes: usize,
    /// Offset of an f16 factor that does not pair with another to a word.
    factor_at: Option<usize>,
    /// The word that has a fifth bit of each of 32 values.
    bits_word: Option<usize>,
    /// Whether signed bytes become unsigned ones, 128 larger.
    is_signed: bool,
}

const LAYOUTS: [Layout; 8] = [
    layout(DType::Q4_0, 18, Some(0), None, false),
    layout(DType::Q4_1, 20, None, None, false),
    layout(DType::Q5_0, 22, Some(0), Some(0), false),
    layout(DType::Q5_1, 24, None, Some(1), false),
    layout(DType::Q8_0, 34, Some(0), None, true),
    layout(DType::Q4K, 144, None, None, false),
    layout(DType::Q5K, 176, None, None, false),
    layout(DType::Q6K, MAX_BLOCK_BYTES, Some(208), None, false),
];

const fn layout(
    dtype: DType,
    block_bytes: usize,
    factor_at: Option<usize>,
    bits_word: Option<usize>,
    is_signed: bool,
) -> Layout {
    Layout { dtype, block_bytes, factor_at, bits_word, is_signed }
}

impl Layout {
    pub(super) fn of(dtype: DType) -> Option<&'static Self> {
        LAYOUTS.iter().find(|layout| layout.dtype == dtype)
    }

    /// Words of a block.
    pub(super) const fn n_words(&self) -> usize {
        (self.block_bytes - if self.factor_at.is_some() { 2 } else { 0 }) / 4
    }

    /// Vectors of the lone factors of a panel: those of two blocks fill one.
    pub(super) const fn factors_len(&self, n_blocks: usize) -> usize {
        if self.factor_at.is_some() { n_blocks.div_ceil(2) } else { 0 }
    }

    /// Vectors of a panel.
    pub(super) const fn panel_len(&self, n_blocks: usize) -> usize {
        self.factors_len(n_blocks) + n_blocks * self.n_words()
    }

    /// Offset in a block of its word `word`.
    const fn word_at(&self, word: usize) -> usize {
        4 * word + if matches!(self.factor_at, Some(0)) { 2 } else { 0 }
    }

    /// Fills a panel with the first 16 rows of `rows`, fewer at the end of a matrix.
    pub(super) fn pack_panel(&self, rows: &[u8], n_blocks: usize, panel: &mut [Words]) {
        let n_words = self.n_words();
        let (factors, words) = panel.split_at_mut(self.factors_len(n_blocks));
        let factors: &mut [u16] = bytemuck::cast_slice_mut(factors);
        let flip = if self.is_signed { 0x8080_8080 } else { 0 };
        let rows = rows.chunks_exact(n_blocks * self.block_bytes).take(PANEL_ROWS);
        for (lane, row) in rows.enumerate() {
            for (i, block) in row.chunks_exact(self.block_bytes).enumerate() {
                if let Some(at) = self.factor_at {
                    let factor = u16::from_le_bytes([block[at], block[at + 1]]);
                    factors[i * PANEL_ROWS + lane] = factor;
                }
                let bytes = &block[self.word_at(0)..][..4 * n_words];
                for (to, word) in words[i * n_words..].iter_mut().zip(bytes.as_chunks().0) {
                    to.0[lane] = u32::from_le_bytes(*word) ^ flip;
                }
            }
        }
        if let Some(word) = self.bits_word {
            for block in words.chunks_exact_mut(n_words) {
                block[word] = bits_by_four(block[word]);
            }
        }
    }

    /// Puts block `block` of row `lane` together again.
    pub(super) fn unpack_block(
        &self,
        panel: &[Words],
        n_blocks: usize,
        (lane, block): (usize, usize),
        out: &mut [u8],
    ) {
        let (factors, words) = panel.split_at(self.factors_len(n_blocks));
        if let Some(at) = self.factor_at {
            let factors: &[u16] = bytemuck::cast_slice(factors);
            out[at..at + 2].copy_from_slice(&factors[block * PANEL_ROWS + lane].to_le_bytes());
        }
        let flip = if self.is_signed { 0x8080_8080 } else { 0 };
        let words = &words[block * self.n_words()..][..self.n_words()];
        for (i, word) in words.iter().enumerate() {
            let value = if self.bits_word == Some(i) { by_row(*word, lane) } else { word.0[lane] };
            out[self.word_at(i)..][..4].copy_from_slice(&(value ^ flip).to_le_bytes());
        }
    }
}

/// Bits `4 g ..` of all rows become the 64-bit integer `g`, whose bits then stand for the bytes of a
/// vector.
fn bits_by_four(rows: Words) -> Words {
    let mut groups = [0u64; 8];
    for (g, group) in groups.iter_mut().enumerate() {
        for (lane, bits) in rows.0.iter().enumerate() {
            *group |= u64::from(bits >> (4 * g) & 15) << (4 * lane);
        }
    }
    bytemuck::cast(groups)
}

/// The bits of row `lane` from what [`bits_by_four`] made.
fn by_row(groups: Words, lane: usize) -> u32 {
    let groups: [u64; 8] = bytemuck::cast(groups);
    groups.iter().enumerate().map(|(g, bits)| ((bits >> (4 * lane) & 15) as u32) << (4 * g)).sum()
}
