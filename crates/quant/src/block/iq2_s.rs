//! `IQ2_S`: 256 values from a codebook of 1024 entries, 2.5625 bits per element.

use bytemuck::{Pod, Zeroable};

use super::definition::Half;
use super::grid;
use super::row::{Quants, RowBlock, row_block};

/// `x[i] = d * (0.5 + s) / 4 * sign[i] * magnitude[i]`, with a 4-bit `s` per 16 elements.
///
/// ```text
/// byte 0..2     d, f16
/// byte 2..34    qs[l]: bits 0..8 of the entry of elements 8 l .. 8 l + 8
/// byte 34..66   signs[l]: bit j = whether element 8 l + j is negative
/// byte 66..74   qh[u]: bits 2 l .. 2 l + 2 = high bits of entry 4 u + l, l in 0..4
/// byte 74..82   scales[u]: bits 0..4 = s of group 2 u, bits 4..8 = s of group 2 u + 1
/// ```
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BlockIq2S {
    /// Scale of the scales.
    pub d: Half,
    /// Low bits of the entries.
    pub qs: [[u8; 4]; 8],
    /// Signs of each 32 elements.
    pub signs: [[u8; 4]; 8],
    /// High bits of the entries.
    pub qh: [u8; 8],
    /// Scales of the groups.
    pub scales: [u8; 8],
}

impl RowBlock for BlockIq2S {
    const GROUP_LEN: usize = 16;
    const QUANTS: Quants = Quants::Signed;

    #[inline(always)]
    fn quants32(&self, u: usize) -> ([u8; 32], u32) {
        let high = usize::from(self.qh[u]);
        let mut entries = [[0; 8]; 4];
        for l in 0..4 {
            let index = usize::from(self.qs[u][l]) | (high >> (2 * l) & 3) << 8;
            entries[l] = grid::IQ2_S[index];
        }
        (bytemuck::cast(entries), u32::from_le_bytes(self.signs[u]))
    }

    #[inline(always)]
    fn d(&self) -> Half {
        self.d
    }

    #[inline(always)]
    fn scales(&self, d: f32) -> [f32; 16] {
        grid::half_step_scales(d, 0.25, &self.scales)
    }
}

row_block!(BlockIq2S: Iq2S, 256);
