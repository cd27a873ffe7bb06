//! `Q8_1`: `Q8_0` with the sum of the block, GGML's activation format for `Q4_1` and `Q5_1` weights.

use bytemuck::{Pod, Zeroable};
use stonechat_compute::DType;

use super::definition::{Block, Half, QuantizeBlock};
use super::q8_0::quantize8;

/// `x[i] = d * q[i]`.
///
/// ```text
/// byte 0..2    d, f16
/// byte 2..4    s = d * sum of q, f16
/// byte 4..36   qs[i], i8
/// ```
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ8_1 {
    /// Scale.
    pub d: Half,
    /// The scaled sum of the values.
    pub s: Half,
    /// Quants.
    pub qs: [i8; 32],
}

impl Block for BlockQ8_1 {
    const DTYPE: DType = DType::Q8_1;
    type Values = [f32; 32];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 32]) {
        let d = self.d.to_f32();
        for j in 0..32 {
            out[j] = f32::from(self.qs[j]) * d;
        }
    }
}

impl QuantizeBlock for BlockQ8_1 {
    fn quantize(x: &[f32; 32]) -> Self {
        let (d, qs) = quantize8(x);
        let sum: i32 = qs.iter().map(|&q| i32::from(q)).sum();
        Self { d: Half::from_f32(d), s: Half::from_f32(sum as f32 * d), qs }
    }
}
