//! `IQ2_XS`: 256 values from a codebook of 512 entries, 2.3125 bits per element.

use bytemuck::{Pod, Zeroable};

use super::definition::Half;
use super::grid;
use super::row::{Quants, RowBlock, row_block};

/// `x[i] = d * (0.5 + s) / 4 * sign[i] * magnitude[i]`, with a 4-bit `s` per 16 elements.
///
/// ```text
/// byte 0..2     d, f16
/// byte 2..66    qs[l], u16, of elements 8 l .. 8 l + 8: bits 0..9 = entry of the codebook,
///               bits 9..16 = signs, the eighth making the number of negative ones even
/// byte 66..74   scales[u]: bits 0..4 = s of group 2 u, bits 4..8 = s of group 2 u + 1
/// ```
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BlockIq2Xs {
    /// Scale of the scales.
    pub d: Half,
    /// Entries and signs of each 8 elements.
    pub qs: [[u8; 2]; 32],
    /// Scales of the groups.
    pub scales: [u8; 8],
}

impl RowBlock for BlockIq2Xs {
    const GROUP_LEN: usize = 16;
    const QUANTS: Quants = Quants::Signed;

    #[inline(always)]
    fn quants32(&self, u: usize) -> ([u8; 32], u32) {
        let (mut entries, mut signs) = ([[0; 8]; 4], [0; 4]);
        for l in 0..4 {
            let q = u16::from_le_bytes(self.qs[4 * u + l]);
            entries[l] = grid::IQ2_XS[usize::from(q & 511)];
            signs[l] = grid::even_signs(u32::from(q >> 9));
        }
        (bytemuck::cast(entries), u32::from_le_bytes(signs))
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

row_block!(BlockIq2Xs: Iq2Xs, 256);
