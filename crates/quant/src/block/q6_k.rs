//! `Q6_K`: 16 groups of 16 signed 6-bit values, 6.5625 bits per element.

use bytemuck::{Pod, Zeroable};
use stonechat_compute::DType;

use super::definition::{Block, Half, QuantizeBlock};
use super::search::{GROUP_MAX_EPS, nearest, search_scale};

/// `x[i] = d * s * (q[i] - 32)`, with an 8-bit `s` per 16 elements.
///
/// ```text
/// byte 0..128     ql[64 h + l], half h of 128 elements, l in 0..64:
///                 bits 0..4 = low bits of q[128 h + l], bits 4..8 = of q[128 h + 64 + l]
/// byte 128..192   qh[32 h + l], l in 0..32:
///                 bits 2 p .. 2 p + 2 = high bits of q[128 h + 32 p + l], p in 0..4
/// byte 192..208   scales[g] = s of group g, i8
/// byte 208..210   d, f16
/// ```
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ6K {
    /// Bits 0..4 of the values, which are offset by 32.
    pub ql: [u8; 128],
    /// Bits 4..6 of the values.
    pub qh: [u8; 64],
    /// Scales of the groups.
    pub scales: [i8; 16],
    /// Scale of the scales.
    pub d: Half,
}

impl Block for BlockQ6K {
    const DTYPE: DType = DType::Q6K;
    type Values = [f32; 256];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 256]) {
        let d = self.d.to_f32();
        let (ql, qh) = (self.ql.as_chunks::<32>().0, self.qh.as_chunks::<32>().0);
        let out = bytemuck::cast_mut::<_, [[f32; 32]; 8]>(out);
        for (pair, out) in out.iter_mut().enumerate() {
            let (h, p) = (pair / 4, pair % 4);
            let (low, high) = (&ql[2 * h + p % 2], &qh[h]);
            let scales = [0, 1].map(|g| d * f32::from(self.scales[2 * pair + g]));
            for l in 0..32 {
                let low = low[l] >> (4 * (p / 2)) & 15;
                let high = (high[l] >> (2 * p) & 3) << 4;
                out[l] = scales[l / 16] * f32::from((low | high) as i8 - 32);
            }
        }
    }
}

impl QuantizeBlock for BlockQ6K {
    fn quantize(x: &[f32; 256]) -> Self {
        let mut block = Self::zeroed();
        let mut q = [[0u8; 16]; 16];
        let groups = bytemuck::cast_ref::<_, [[f32; 16]; 16]>(x);
        let mut scales = [0.0f32; 16];
        for (g, group) in groups.iter().enumerate() {
            scales[g] = search_scale(32, group, &mut q[g]);
        }
        let max_scale = super::definition::signed_max(&scales);
        if max_scale.abs() < GROUP_MAX_EPS {
            return block;
        }
        let inverse = -128.0 / max_scale;
        block.d = Half::from_f32(1.0 / inverse);
        block.scales = scales.map(|s| nearest(inverse * s).min(127) as i8);
        for (g, group) in groups.iter().enumerate() {
            let d = block.d.to_f32() * f32::from(block.scales[g]);
            if d != 0.0 {
                q[g] = group.map(|v| (nearest(v / d).clamp(-32, 31) + 32) as u8);
            }
        }
        let q: [u8; 256] = bytemuck::cast(q);
        block.ql = std::array::from_fn(|i| {
            let first = i / 64 * 128 + i % 64;
            (q[first] & 15) | q[first + 64] << 4
        });
        block.qh = std::array::from_fn(|i| {
            let first = i / 32 * 128 + i % 32;
            (0..4).fold(0, |byte, p| byte | (q[first + 32 * p] >> 4) << (2 * p))
        });
        block
    }
}
