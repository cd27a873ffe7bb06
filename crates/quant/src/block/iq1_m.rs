//! `IQ1_M`: 256 ternary values from the codebook of `IQ1_S`, 1.75 bits per element.

use bytemuck::{Pod, Zeroable};
use stonechat_compute::simd::RowInt8;

use super::definition::Half;
use super::grid;
use super::iq1_s::shifted;
use super::row::{Quants, RowBlock, row_block};

/// `x[i] = d * (2 * s + 1) * (v[i] + delta)`, `v[i]` of -1, 0, 1, with a 3-bit `s` per 16 and a
/// `delta` of 1/8 or -1/8 per 8 elements.
///
/// ```text
/// byte 0..32    qs[l]: bits 0..8 of the entry of elements 8 l .. 8 l + 8
/// byte 32..48   qh[p]: bits 0..3 = high bits of entry 2 p, bit 3 = whether its delta is negative;
///               bits 4..8 the same of entry 2 p + 1
/// byte 48..56   scales[p], u16: bits 3 g .. 3 g + 3 = s of group 4 p + g, g in 0..4;
///               bits 12..16 = bits 4 p .. 4 p + 4 of d, f16
/// ```
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BlockIq1M {
    /// Low bits of the entries.
    pub qs: [[u8; 4]; 8],
    /// High bits of the entries and signs of their deltas.
    pub qh: [[u8; 2]; 8],
    /// Scales of the groups and their scale.
    pub scales: [[u8; 2]; 4],
}

impl BlockIq1M {
    /// `8 * (v + 1)`, and `8 * delta + 1`, of elements `32 * u ..`: they have no bits in common.
    #[inline(always)]
    fn entries_deltas(&self, u: usize) -> ([u8; 32], [u8; 32]) {
        let (mut entries, mut deltas) = ([[0; 8]; 4], [0; 4]);
        for l in 0..4 {
            let high = self.qh[u][l / 2] >> (l % 2 * 4);
            entries[l] = grid::IQ1_S[usize::from(self.qs[u][l]) | usize::from(high & 7) << 8];
            deltas[l] = if high & 8 == 0 { 0x0202_0202_0202_0202_u64 } else { 0 };
        }
        (bytemuck::cast(entries), bytemuck::cast(deltas))
    }
}

/// Quants are `8 * (v + delta) + 9`, 0 to 18.
impl RowBlock for BlockIq1M {
    const GROUP_LEN: usize = 16;
    const QUANTS: Quants = Quants::Unsigned { offset: 9 };

    #[inline(always)]
    fn quants32(&self, u: usize) -> ([u8; 32], u32) {
        let mut entries = [[0; 8]; 4];
        for l in 0..4 {
            let high = self.qh[u][l / 2] >> (l % 2 * 4);
            let index = usize::from(self.qs[u][l]) | usize::from(high & 7) << 8;
            entries[l] = shifted(index, high & 8 != 0);
        }
        (bytemuck::cast(entries), 0)
    }

    // `quants32` would be slower: LLVM would vectorize its lookups and addition to a gather.
    #[inline(always)]
    fn load_quants<S: RowInt8>(&self, s: S, u: usize, part: usize) -> S::U32s {
        let (entries, deltas) = self.entries_deltas(u);
        let [entries, deltas] = [entries, deltas].map(bytemuck::cast::<_, [u32; 8]>);
        s.or(s.load_u32s(&entries, part), s.load_u32s(&deltas, part))
    }

    #[inline(always)]
    fn d(&self) -> Half {
        let nibble = |p: usize| self.scales[p][1] >> 4;
        Half([nibble(0) | nibble(1) << 4, nibble(2) | nibble(3) << 4])
    }

    #[inline(always)]
    fn scales(&self, d: f32) -> [f32; 16] {
        let (d, mut scales) = (d * 0.125, [0.0; 16]);
        for g in 0..16 {
            let s = u16::from_le_bytes(self.scales[g / 4]) >> (g % 4 * 3) & 7;
            scales[g] = d * f32::from(2 * s + 1);
        }
        scales
    }
}

row_block!(BlockIq1M: Iq1M, 256);
