//! `Q8_0`: 32 signed 8-bit values with one scale, 8.5 bits per element.

use bytemuck::{Pod, Zeroable};
use stonechat_compute::DType;

use super::definition::{Block, Half, QuantizeBlock, reciprocal, truncate};

/// `x[i] = d * q[i]`.
///
/// ```text
/// byte 0..2    d, f16
/// byte 2..34   qs[i], i8
/// ```
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ8_0 {
    /// Scale.
    pub d: Half,
    /// Quants.
    pub qs: [i8; 32],
}

impl Block for BlockQ8_0 {
    const DTYPE: DType = DType::Q8_0;
    type Values = [f32; 32];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 32]) {
        let d = self.d.to_f32();
        for j in 0..32 {
            out[j] = f32::from(self.qs[j]) * d;
        }
    }
}

impl QuantizeBlock for BlockQ8_0 {
    fn quantize(x: &[f32; 32]) -> Self {
        let (d, qs) = quantize8(x);
        Self { d: Half::from_f32(d), qs }
    }
}

/// The scale, not yet rounded to f16, and the values; halves round away from zero.
pub(super) fn quantize8(x: &[f32; 32]) -> (f32, [i8; 32]) {
    let mut amax = 0.0f32;
    for &v in x {
        amax = if amax > v.abs() { amax } else { v.abs() };
    }
    let d = amax / 127.0;
    let inverse = reciprocal(d);
    (d, x.map(|v| truncate((v * inverse).round()) as i8))
}
