//! `IQ3_S`: 256 values from a codebook of 512 entries of 4, 3.4375 bits per element.

use bytemuck::{Pod, Zeroable};

use super::definition::Half;
use super::grid;
use super::row::{Quants, RowBlock, row_block};

/// `x[i] = d * (1 + 2 * s) * sign[i] * magnitude[i]`, with a 4-bit `s` per 32 elements.
///
/// ```text
/// byte 0..2       d, f16
/// byte 2..66      qs[l]: bits 0..8 of the entry of elements 4 l .. 4 l + 4
/// byte 66..74     qh[u]: bit l = bit 8 of entry 8 u + l
/// byte 74..106    signs[l]: bit j = whether element 8 l + j is negative
/// byte 106..110   scales[p]: bits 0..4 = s of group 2 p, bits 4..8 = s of group 2 p + 1
/// ```
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BlockIq3S {
    /// Scale of the scales.
    pub d: Half,
    /// Low bits of the entries.
    pub qs: [[u8; 8]; 8],
    /// High bits of the entries.
    pub qh: [u8; 8],
    /// Signs of each 32 elements.
    pub signs: [[u8; 4]; 8],
    /// Scales of the groups.
    pub scales: [u8; 4],
}

impl RowBlock for BlockIq3S {
    const GROUP_LEN: usize = 32;
    const QUANTS: Quants = Quants::Signed;

    #[inline(always)]
    fn quants32(&self, u: usize) -> ([u8; 32], u32) {
        let high = usize::from(self.qh[u]);
        let mut entries = [[0; 4]; 8];
        for l in 0..8 {
            let index = usize::from(self.qs[u][l]) | (high >> l & 1) << 8;
            entries[l] = grid::IQ3_S[index];
        }
        (bytemuck::cast(entries), u32::from_le_bytes(self.signs[u]))
    }

    #[inline(always)]
    fn d(&self) -> Half {
        self.d
    }

    #[inline(always)]
    fn scales(&self, d: f32) -> [f32; 16] {
        let mut scales = [0.0; 16];
        for u in 0..8 {
            scales[u] = d * f32::from(1 + 2 * (self.scales[u / 2] >> (u % 2 * 4) & 15));
        }
        scales
    }
}

row_block!(BlockIq3S: Iq3S, 256);
