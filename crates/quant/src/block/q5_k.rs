//! `Q5_K`: 8 groups of 32 unsigned 5-bit values, 5.5 bits per element.

use bytemuck::{Pod, Zeroable};
use stonechat_compute::DType;

use super::definition::{Block, Half, QuantizeBlock, unpack_scales_mins};
use super::q4_k::{Groups, quantize_groups};
use super::search::AffineSearch;

/// `x[i] = d * s * q[i] - dmin * m`, with 6-bit `s`, `m` per 32 elements.
///
/// ```text
/// byte 0..2      d, f16
/// byte 2..4      dmin, f16
/// byte 4..16     scales: s[0..8] and m[0..8], see `unpack_scales_mins`
/// byte 16..48    qh[l]: bit p = bit 4 of q[32 p + l], p in 0..8
/// byte 48..176   qs: bits 0..4 of q, laid out as in Q4_K
/// ```
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ5K {
    /// Scale of the scales.
    pub d: Half,
    /// Scale of the mins.
    pub dmin: Half,
    /// Scales and mins of the groups.
    pub scales: [u8; 12],
    /// Bit 4 of the values.
    pub qh: [u8; 32],
    /// Bits 0..4 of the values.
    pub qs: [u8; 128],
}

const SEARCH: AffineSearch =
    AffineSearch { limit: 31, first: -0.5, step: 0.1, steps: 15, absolute: false };

impl BlockQ5K {
    /// Scales and mins of the groups.
    #[inline(always)]
    pub(crate) fn group_scales(&self) -> ([u8; 8], [u8; 8]) {
        unpack_scales_mins(&self.scales)
    }
}

impl Block for BlockQ5K {
    const DTYPE: DType = DType::Q5K;
    type Values = [f32; 256];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 256]) {
        let (d, dmin) = (self.d.to_f32(), self.dmin.to_f32());
        let (scales, mins) = self.group_scales();
        for g in 0..8 {
            let scale = d * f32::from(scales[g]);
            let min = dmin * f32::from(mins[g]);
            for l in 0..32 {
                let low = self.qs[32 * (g / 2) + l] >> (4 * (g % 2)) & 15;
                let high = (self.qh[l] >> g & 1) << 4;
                out[32 * g + l] = scale * f32::from(low | high) - min;
            }
        }
    }
}

impl QuantizeBlock for BlockQ5K {
    fn quantize(x: &[f32; 256]) -> Self {
        let Groups { d, dmin, scales, q } = quantize_groups(&SEARCH, x);
        let qs = std::array::from_fn(|i| {
            let first = i / 32 * 64 + i % 32;
            (q[first] & 15) | q[first + 32] << 4
        });
        let qh =
            std::array::from_fn(|l| (0..8).fold(0, |byte, p| byte | (q[32 * p + l] >> 4) << p));
        Self { d, dmin, scales, qh, qs }
    }
}
