//! `IQ1_S`: 256 ternary values from a codebook of 2048 entries, 1.5625 bits per element.

use bytemuck::{Pod, Zeroable};

use super::definition::Half;
use super::grid;
use super::row::{Quants, RowBlock, row_block};

/// `x[i] = d * (2 * s + 1) * (v[i] + delta)`, `v[i]` of -1, 0, 1, with a 3-bit `s` and a `delta`
/// of 1/8 or -1/8 per 32 elements.
///
/// ```text
/// byte 0..2     d, f16
/// byte 2..34    qs[l]: bits 0..8 of the entry of elements 8 l .. 8 l + 8
/// byte 34..50   qh[u], u16: bits 3 l .. 3 l + 3 = high bits of entry 4 u + l, l in 0..4;
///               bits 12..15 = s of group u, bit 15 = whether its delta is negative
/// ```
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BlockIq1S {
    /// Scale of the scales.
    pub d: Half,
    /// Low bits of the entries.
    pub qs: [[u8; 4]; 8],
    /// High bits of the entries, scale and sign of the delta of each 32 elements.
    pub qh: [[u8; 2]; 8],
}

/// Quants are `8 * (v + delta) + 9`, 0 to 18.
impl RowBlock for BlockIq1S {
    const GROUP_LEN: usize = 32;
    const QUANTS: Quants = Quants::Unsigned { offset: 9 };

    #[inline(always)]
    fn quants32(&self, u: usize) -> ([u8; 32], u32) {
        let high = u16::from_le_bytes(self.qh[u]);
        let mut entries = [[0; 8]; 4];
        for l in 0..4 {
            let index = usize::from(self.qs[u][l]) | usize::from(high >> (3 * l) & 7) << 8;
            entries[l] = shifted(index, high >> 15 != 0);
        }
        (bytemuck::cast(entries), 0)
    }

    #[inline(always)]
    fn d(&self) -> Half {
        self.d
    }

    #[inline(always)]
    fn scales(&self, d: f32) -> [f32; 16] {
        let (d, mut scales) = (d * 0.125, [0.0; 16]);
        for u in 0..8 {
            scales[u] = d * f32::from((self.qh[u][1] >> 4 & 7) * 2 + 1);
        }
        scales
    }
}

/// The eight values `8 * (v + delta) + 9` of an entry.
#[inline(always)]
pub(super) fn shifted(index: usize, negative: bool) -> [u8; 8] {
    let delta = if negative { 0 } else { 0x0202_0202_0202_0202 };
    (u64::from_le_bytes(grid::IQ1_S[index]) + delta).to_le_bytes()
}

row_block!(BlockIq1S: Iq1S, 256);
