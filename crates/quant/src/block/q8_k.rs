//! `Q8_K`: 256 signed 8-bit values with an f32 scale, GGML's activation format for K types.

use bytemuck::{Pod, Zeroable};
use stonechat_compute::DType;

use super::definition::{Block, QuantizeBlock, signed_max};
use super::search::nearest;

/// `x[i] = d * q[i]`.
///
/// ```text
/// byte 0..4       d, f32
/// byte 4..260     qs[i], i8
/// byte 260..292   bsums[j], i16 = sum of q[16 j .. 16 j + 16]
/// ```
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ8K {
    /// Scale, a little-endian f32.
    pub d: [u8; 4],
    /// Quants.
    pub qs: [i8; 256],
    /// Sums of 16 values, little-endian i16.
    pub bsums: [[u8; 2]; 16],
}

impl Block for BlockQ8K {
    const DTYPE: DType = DType::Q8K;
    type Values = [f32; 256];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 256]) {
        let d = f32::from_le_bytes(self.d);
        for j in 0..256 {
            out[j] = d * f32::from(self.qs[j]);
        }
    }
}

impl QuantizeBlock for BlockQ8K {
    fn quantize(x: &[f32; 256]) -> Self {
        let max = signed_max(x);
        if max == 0.0 {
            return Self::zeroed();
        }
        let inverse = -127.0 / max;
        let qs: [i8; 256] = std::array::from_fn(|i| nearest(inverse * x[i]).min(127) as i8);
        let bsums = std::array::from_fn(|j| {
            let sum: i16 = qs[16 * j..][..16].iter().map(|&q| i16::from(q)).sum();
            sum.to_le_bytes()
        });
        Self { d: (1.0 / inverse).to_le_bytes(), qs, bsums }
    }
}
