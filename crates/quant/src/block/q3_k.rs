//! `Q3_K`: 16 groups of 16 signed 3-bit values, 3.4375 bits per element.

use bytemuck::{Pod, Zeroable};
use stonechat_compute::DType;

use super::definition::{Block, Half, QuantizeBlock};
use super::q2_k::pack2;
use super::search::{nearest, search_scale_q3};

/// `x[i] = d * (s - 32) * (q[i] - 4)`, with a 6-bit `s` per 16 elements.
///
/// ```text
/// byte 0..32     hmask[l]: bit p = bit 2 of q[32 p + l], p in 0..8
/// byte 32..96    qs: bits 0..2 of q, laid out as in Q2_K
/// byte 96..104   scales[g]: bits 0..4 = low bits of s[g], bits 4..8 = low bits of s[g + 8]
/// byte 104..108  scales[8 + g % 4]: bits 2 p .. 2 p + 2 = high bits of s[g], p = g / 4
/// byte 108..110  d, f16
/// ```
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ3K {
    /// Bit 2 of the values, which are offset by 4.
    pub hmask: [u8; 32],
    /// Bits 0..2 of the values.
    pub qs: [u8; 64],
    /// Scales of the groups, offset by 32.
    pub scales: [u8; 12],
    /// Scale of the scales.
    pub d: Half,
}

impl BlockQ3K {
    /// `s - 32` of the groups.
    #[inline(always)]
    pub(crate) fn group_scales(&self) -> [i8; 16] {
        let [a, b, c, d, e, f, g, h, top @ ..] = self.scales;
        let low = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        let top = u64::from(u32::from_le_bytes(top));
        // The pairs of four groups in one half of a word, those of the next four in the other.
        let high = |shift: u32| (top >> shift | top >> (shift + 2) << 32) & 0x0303_0303_0303_0303;
        let join = |low: u64, high: u64| (low & 0x0f0f_0f0f_0f0f_0f0f) | high << 4;
        let words = [join(low, high(0)), join(low >> 4, high(4))];
        let scales: [u8; 16] = bytemuck::cast(words.map(u64::to_le_bytes));
        let mut signed = [0; 16];
        for g in 0..16 {
            signed[g] = scales[g] as i8 - 32;
        }
        signed
    }
}

impl Block for BlockQ3K {
    const DTYPE: DType = DType::Q3K;
    type Values = [f32; 256];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 256]) {
        let d = self.d.to_f32();
        let scales = self.group_scales();
        for g in 0..16 {
            let (h, p) = (g / 8, g % 8 / 2);
            let scale = d * f32::from(scales[g]);
            for l in 0..16 {
                let column = 16 * (g % 2) + l;
                let low = self.qs[32 * h + column] >> (2 * p) & 3;
                let high = (self.hmask[column] >> (g / 2) & 1) << 2;
                out[16 * g + l] = scale * f32::from((low | high) as i8 - 4);
            }
        }
    }
}

impl QuantizeBlock for BlockQ3K {
    fn quantize(x: &[f32; 256]) -> Self {
        let mut block = Self::zeroed();
        let mut q = [[0u8; 16]; 16];
        let groups = bytemuck::cast_ref::<_, [[f32; 16]; 16]>(x);
        let mut scales = [0.0f32; 16];
        for (g, group) in groups.iter().enumerate() {
            scales[g] = search_scale_q3(group, &mut q[g]);
        }
        let max_scale = super::definition::signed_max(&scales);
        if max_scale != 0.0 {
            let inverse = -32.0 / max_scale;
            for (g, &scale) in scales.iter().enumerate() {
                let s = ((nearest(inverse * scale) as i8).clamp(-32, 31) + 32) as u8;
                block.scales[g % 8] |= (s & 15) << (g / 8 * 4);
                block.scales[8 + g % 4] |= (s >> 4) << (g / 4 * 2);
            }
            block.d = Half::from_f32(1.0 / inverse);
        }
        let stored = block.group_scales();
        for (g, group) in groups.iter().enumerate() {
            let d = block.d.to_f32() * f32::from(stored[g]);
            if d != 0.0 {
                q[g] = group.map(|v| (nearest(v / d).clamp(-4, 3) + 4) as u8);
            }
        }
        let q: [u8; 256] = bytemuck::cast(q);
        for (i, &v) in q.iter().enumerate() {
            block.hmask[i % 32] |= (v >> 2) << (i / 32);
        }
        block.qs = pack2(&q);
        block
    }
}
