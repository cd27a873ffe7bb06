//! `IQ2_XXS`: 256 values from a codebook of 256 entries, 2.0625 bits per element.

use bytemuck::{Pod, Zeroable};

use super::definition::Half;
use super::grid;
use super::row::{Quants, RowBlock, row_block};

/// `x[i] = d * (0.5 + s) / 4 * sign[i] * magnitude[i]`, with a 4-bit `s` per 32 elements.
///
/// ```text
/// byte 0..2              d, f16
/// byte 2 + 8 u + 0..4    entries of the codebook for elements 32 u + 8 l, l in 0..4
/// byte 2 + 8 u + 4..8    u32: bits 7 l .. 7 l + 7 = signs of the eight elements of entry l, the
///                        eighth making the number of negative ones even; bits 28..32 = s
/// ```
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BlockIq2Xxs {
    /// Scale of the scales.
    pub d: Half,
    /// Entries, signs and scale of each 32 elements.
    pub qs: [[u8; 8]; 8],
}

impl BlockIq2Xxs {
    #[inline(always)]
    fn word(&self, u: usize) -> u32 {
        let [.., a, b, c, d] = self.qs[u];
        u32::from_le_bytes([a, b, c, d])
    }
}

impl RowBlock for BlockIq2Xxs {
    const GROUP_LEN: usize = 32;
    const QUANTS: Quants = Quants::Signed;

    #[inline(always)]
    fn quants32(&self, u: usize) -> ([u8; 32], u32) {
        let entry = |l: usize| grid::IQ2_XXS[usize::from(self.qs[u][l])];
        let magnitudes = bytemuck::cast([entry(0), entry(1), entry(2), entry(3)]);
        (magnitudes, grid::four_even_signs(self.word(u)))
    }

    #[inline(always)]
    fn d(&self) -> Half {
        self.d
    }

    #[inline(always)]
    fn scales(&self, d: f32) -> [f32; 16] {
        let mut scales = [0.0; 16];
        for u in 0..8 {
            scales[u] = d * (0.5 + (self.word(u) >> 28) as f32) * 0.25;
        }
        scales
    }
}

row_block!(BlockIq2Xxs: Iq2Xxs, 256);
