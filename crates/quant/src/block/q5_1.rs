//! `Q5_1`: 32 unsigned 5-bit values with a scale and a minimum, 6 bits per element.

use bytemuck::{Pod, Zeroable};
use stonechat_compute::DType;

use super::definition::{Block, Half, QuantizeBlock, min_max, reciprocal, truncate};
use super::q5_0::{pack5, unpack5};

/// `x[i] = d * q[i] + m`.
///
/// ```text
/// byte 0..2    d, f16
/// byte 2..4    m, f16
/// byte 4..8    qh, u32: bit i = bit 4 of q[i]
/// byte 8..24   qs[j]: bits 0..4 = low bits of q[j], bits 4..8 = low bits of q[j + 16]
/// ```
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ5_1 {
    /// Scale.
    pub d: Half,
    /// Minimum.
    pub m: Half,
    /// Bit 4 of the values.
    pub qh: [u8; 4],
    /// Bits 0..4 of the values.
    pub qs: [u8; 16],
}

impl Block for BlockQ5_1 {
    const DTYPE: DType = DType::Q5_1;
    type Values = [f32; 32];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 32]) {
        let (d, m) = (self.d.to_f32(), self.m.to_f32());
        let high = u32::from_le_bytes(self.qh);
        for j in 0..16 {
            let (low, top) = unpack5(high, &self.qs, j);
            out[j] = low as f32 * d + m;
            out[j + 16] = top as f32 * d + m;
        }
    }
}

impl QuantizeBlock for BlockQ5_1 {
    fn quantize(x: &[f32; 32]) -> Self {
        let (min, max) = min_max(x);
        let d = (max - min) / 31.0;
        let inverse = reciprocal(d);
        let (qh, qs) = pack5(&x.map(|v| truncate((v - min) * inverse + 0.5) as u8));
        Self { d: Half::from_f32(d), m: Half::from_f32(min), qh, qs }
    }
}
