//! `IQ4_XS`: 8 groups of 32 values of the levels of `IQ4_NL`, 4.25 bits per element.

use bytemuck::{Pod, Zeroable};
use stonechat_compute::DType;

use super::definition::{Block, Half, QuantizeBlock, reciprocal, signed_max};
use super::iq4_nl::{LEVELS, best_scale, dequantize_levels, pack_levels};
use super::search::nearest;

/// `x[i] = d * (s - 32) * LEVELS[q[i]]`, with a 6-bit `s` per 32 elements.
///
/// ```text
/// byte 0..2     d, f16
/// byte 2..4     scales_h, u16: bits 2 g .. 2 g + 2 = high bits of s of group g
/// byte 4..8     scales_l[p]: bits 0..4 = low bits of s of group 2 p, bits 4..8 = of group 2 p + 1
/// byte 8..136   qs[16 g + j]: bits 0..4 = q[32 g + j], bits 4..8 = q[32 g + j + 16]
/// ```
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BlockIq4Xs {
    /// Scale of the scales.
    pub d: Half,
    /// Bits 4..6 of the scales, which are offset by 32.
    pub scales_h: [u8; 2],
    /// Bits 0..4 of the scales.
    pub scales_l: [u8; 4],
    /// Levels of each 32 elements.
    pub qs: [[u8; 16]; 8],
}

impl BlockIq4Xs {
    /// `d * (s - 32)` of the groups.
    #[inline(always)]
    pub(crate) fn group_scales(&self, d: f32) -> [f32; 8] {
        let high = u16::from_le_bytes(self.scales_h);
        let mut scales = [0.0; 8];
        for g in 0..8 {
            let low = self.scales_l[g / 2] >> (g % 2 * 4) & 15;
            let s = low | ((high >> (2 * g) & 3) << 4) as u8;
            scales[g] = d * f32::from(s as i8 - 32);
        }
        scales
    }
}

impl Block for BlockIq4Xs {
    const DTYPE: DType = DType::Iq4Xs;
    type Values = [f32; 256];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 256]) {
        let scales = self.group_scales(self.d.to_f32());
        let groups = bytemuck::cast_mut::<_, [[f32; 32]; 8]>(out);
        for g in 0..8 {
            dequantize_levels(scales[g], &LEVELS, &self.qs[g], &mut groups[g]);
        }
    }
}

impl QuantizeBlock for BlockIq4Xs {
    fn quantize(x: &[f32; 256]) -> Self {
        let groups = bytemuck::cast_ref::<_, [[f32; 32]; 8]>(x);
        let scales = groups.each_ref().map(best_scale);
        let d = -signed_max(&scales) / 32.0;
        let inverse = reciprocal(d);
        let mut block = Self { d: Half::from_f32(d), ..Self::zeroed() };
        let mut high = 0u16;
        for g in 0..8 {
            let s = nearest(inverse * scales[g]).clamp(-32, 31);
            block.qs[g] = pack_levels(reciprocal(d * s as f32), &groups[g]);
            let s = (s + 32) as u8;
            block.scales_l[g / 2] |= (s & 15) << (g % 2 * 4);
            high |= u16::from(s >> 4) << (2 * g);
        }
        block.scales_h = high.to_le_bytes();
        block
    }
}
