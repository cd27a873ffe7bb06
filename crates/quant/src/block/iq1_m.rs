//! `IQ1_M`: 256 ternary values from the codebook of `IQ1_S`, 1.75 bits an element.

use bytemuck::{Pod, Zeroable};
use stonechat_compute::DType;

use super::iq1_s::{shifted, value};
use super::{Block, Half};

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

const _: () = assert!(size_of::<BlockIq1M>() == 56 && align_of::<BlockIq1M>() == 1);

impl BlockIq1M {
    /// Scale of the scales.
    #[inline(always)]
    pub(crate) fn d(&self) -> Half {
        let nibble = |p: usize| self.scales[p][1] >> 4;
        Half([nibble(0) | nibble(1) << 4, nibble(2) | nibble(3) << 4])
    }

    /// `8 * (v + delta) + 9` of elements `32 * u ..`: integers of 0 to 18.
    #[inline(always)]
    pub(crate) fn quants32(&self, u: usize) -> [u8; 32] {
        let mut entries = [[0; 8]; 4];
        for l in 0..4 {
            let high = self.qh[u][l / 2] >> (l % 2 * 4);
            let index = usize::from(self.qs[u][l]) | usize::from(high & 7) << 8;
            entries[l] = shifted(index, high & 8 != 0);
        }
        bytemuck::cast(entries)
    }

    /// `d * (2 * s + 1)` of the groups.
    #[inline(always)]
    pub(crate) fn group_scales(&self, d: f32) -> [f32; 16] {
        let mut scales = [0.0; 16];
        for g in 0..16 {
            let s = u16::from_le_bytes(self.scales[g / 4]) >> (g % 4 * 3) & 7;
            scales[g] = d * f32::from(2 * s + 1);
        }
        scales
    }
}

impl Block for BlockIq1M {
    const DTYPE: DType = DType::Iq1M;
    const BLOCK_LEN: usize = 256;
    type Values = [f32; 256];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 256]) {
        let scales = self.group_scales(self.d().to_f32());
        for u in 0..8 {
            let q = self.quants32(u);
            for i in 0..32 {
                out[32 * u + i] = value(scales[2 * u + i / 16], q[i]);
            }
        }
    }
}
