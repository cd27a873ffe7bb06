//! `Q4_1`: 32 unsigned 4-bit values with a scale and a minimum, 5 bits per element.

use bytemuck::{Pod, Zeroable};
use stonechat_compute::DType;

use super::definition::{Block, Half, QuantizeBlock, min_max, nibbles, reciprocal, truncate};

/// `x[i] = d * q[i] + m`.
///
/// ```text
/// byte 0..2    d, f16
/// byte 2..4    m, f16
/// byte 4..20   qs[j]: bits 0..4 = q[j], bits 4..8 = q[j + 16]
/// ```
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ4_1 {
    /// Scale.
    pub d: Half,
    /// Minimum.
    pub m: Half,
    /// 4-bit quants, two per byte.
    pub qs: [u8; 16],
}

impl Block for BlockQ4_1 {
    const DTYPE: DType = DType::Q4_1;
    type Values = [f32; 32];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 32]) {
        let (d, m) = (self.d.to_f32(), self.m.to_f32());
        let q = nibbles(&self.qs);
        for j in 0..32 {
            out[j] = f32::from(q[j]) * d + m;
        }
    }
}

impl QuantizeBlock for BlockQ4_1 {
    fn quantize(x: &[f32; 32]) -> Self {
        let (min, max) = min_max(x);
        let d = (max - min) / 15.0;
        let inverse = reciprocal(d);
        let quant = |v: f32| (truncate((v - min) * inverse + 0.5) as i8).min(15) as u8;
        let qs = std::array::from_fn(|j| quant(x[j]) | quant(x[j + 16]) << 4);
        Self { d: Half::from_f32(d), m: Half::from_f32(min), qs }
    }
}
