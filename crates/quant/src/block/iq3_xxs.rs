//! `IQ3_XXS`: 256 values from a codebook of 256 entries of 4, 3.0625 bits per element.

use bytemuck::{Pod, Zeroable};

use super::definition::Half;
use super::grid;
use super::row::{Quants, RowBlock, row_block};

/// `x[i] = d * (0.5 + s) / 2 * sign[i] * magnitude[i]`, with a 4-bit `s` per 32 elements.
///
/// ```text
/// byte 0..2     d, f16
/// byte 2..66    qs[l]: entry of the codebook for elements 4 l .. 4 l + 4
/// byte 66..98   words[u], u32: bits 7 l .. 7 l + 7 = signs of elements 32 u + 8 l .., the eighth
///               making the number of negative ones even; bits 28..32 = s of group u
/// ```
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BlockIq3Xxs {
    /// Scale of the scales.
    pub d: Half,
    /// Entries of each 32 elements.
    pub qs: [[u8; 8]; 8],
    /// Signs and scale of each 32 elements.
    pub words: [[u8; 4]; 8],
}

impl RowBlock for BlockIq3Xxs {
    const GROUP_LEN: usize = 32;
    const QUANTS: Quants = Quants::Signed;

    #[inline(always)]
    fn quants32(&self, u: usize) -> ([u8; 32], u32) {
        let mut entries = [[0; 4]; 8];
        for l in 0..8 {
            entries[l] = grid::IQ3_XXS[usize::from(self.qs[u][l])];
        }
        (bytemuck::cast(entries), grid::four_even_signs(u32::from_le_bytes(self.words[u])))
    }

    #[inline(always)]
    fn d(&self) -> Half {
        self.d
    }

    #[inline(always)]
    fn scales(&self, d: f32) -> [f32; 16] {
        let mut scales = [0.0; 16];
        for u in 0..8 {
            scales[u] = d * (0.5 + f32::from(self.words[u][3] >> 4)) * 0.5;
        }
        scales
    }
}

row_block!(BlockIq3Xxs: Iq3Xxs, 256);
