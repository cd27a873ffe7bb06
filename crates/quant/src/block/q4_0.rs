//! `Q4_0`: 32 signed 4-bit values with one scale, 4.5 bits per element.

use bytemuck::{Pod, Zeroable};
use stonechat_compute::DType;

use super::definition::{Block, Half, QuantizeBlock, nibbles, reciprocal, signed_max, truncate};

/// `x[i] = d * (q[i] - 8)`.
///
/// ```text
/// byte 0..2    d, f16
/// byte 2..18   qs[j]: bits 0..4 = q[j], bits 4..8 = q[j + 16]
/// ```
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ4_0 {
    /// Scale.
    pub d: Half,
    /// Values, offset by 8.
    pub qs: [u8; 16],
}

impl Block for BlockQ4_0 {
    const DTYPE: DType = DType::Q4_0;
    type Values = [f32; 32];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 32]) {
        let d = self.d.to_f32();
        let q = nibbles(&self.qs);
        for j in 0..32 {
            out[j] = (i32::from(q[j]) - 8) as f32 * d;
        }
    }
}

impl QuantizeBlock for BlockQ4_0 {
    fn quantize(x: &[f32; 32]) -> Self {
        let d = signed_max(x) / -8.0;
        let inverse = reciprocal(d);
        let quant = |v: f32| (truncate(v * inverse + 8.5) as i8).min(15) as u8;
        let qs = std::array::from_fn(|j| quant(x[j]) | quant(x[j + 16]) << 4);
        Self { d: Half::from_f32(d), qs }
    }
}
