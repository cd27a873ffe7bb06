//! `Q5_0`: 32 signed 5-bit values with one scale, 5.5 bits per element.

use bytemuck::{Pod, Zeroable};
use stonechat_compute::DType;

use super::definition::{Block, Half, QuantizeBlock, reciprocal, signed_max, truncate};

/// `x[i] = d * (q[i] - 16)`.
///
/// ```text
/// byte 0..2    d, f16
/// byte 2..6    qh, u32: bit i = bit 4 of q[i]
/// byte 6..22   qs[j]: bits 0..4 = low bits of q[j], bits 4..8 = low bits of q[j + 16]
/// ```
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ5_0 {
    /// Scale.
    pub d: Half,
    /// Bit 4 of the values.
    pub qh: [u8; 4],
    /// Bits 0..4 of the values, which are offset by 16.
    pub qs: [u8; 16],
}

impl Block for BlockQ5_0 {
    const DTYPE: DType = DType::Q5_0;
    type Values = [f32; 32];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 32]) {
        let d = self.d.to_f32();
        let high = u32::from_le_bytes(self.qh);
        for j in 0..16 {
            let (low, top) = unpack5(high, &self.qs, j);
            out[j] = (low - 16) as f32 * d;
            out[j + 16] = (top - 16) as f32 * d;
        }
    }
}

impl QuantizeBlock for BlockQ5_0 {
    fn quantize(x: &[f32; 32]) -> Self {
        let d = signed_max(x) / -16.0;
        let inverse = reciprocal(d);
        let q = x.map(|v| (truncate(v * inverse + 16.5) as i8).min(31) as u8);
        let (qh, qs) = pack5(&q);
        Self { d: Half::from_f32(d), qh, qs }
    }
}

/// The fifth bits and the nibbles of 32 values below 32.
pub(super) fn pack5(q: &[u8; 32]) -> ([u8; 4], [u8; 16]) {
    let mut high = 0u32;
    for (i, &v) in q.iter().enumerate() {
        high |= u32::from(v >> 4 & 1) << i;
    }
    (high.to_le_bytes(), std::array::from_fn(|j| (q[j] & 15) | q[j + 16] << 4))
}

/// Values `j` and `j + 16`.
#[inline(always)]
pub(super) fn unpack5(high: u32, qs: &[u8; 16], j: usize) -> (i32, i32) {
    let bit = |i: usize| (high >> i & 1) << 4;
    let low = u32::from(qs[j] & 15) | bit(j);
    let top = u32::from(qs[j] >> 4) | bit(j + 16);
    (low as i32, top as i32)
}
