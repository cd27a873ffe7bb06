//! `MXFP4`: 32 values of 4-bit floats (E2M1) with one power of two (E8M0), 4.25 bits per element.

use bytemuck::{Pod, Zeroable};
use stonechat_compute::DType;

use super::definition::{Block, QuantizeBlock, truncate};
use super::iq4_nl::dequantize_levels;

/// Twice the values of E2M1: a sign, two bits of exponent, one of mantissa.
pub(crate) const E2M1_TWICE: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// `x[i] = 2^(e - 128) * E2M1_TWICE[q[i]]`.
///
/// Source: OCP Microscaling Formats (MX) v1.0; its NaN, `e = 255`, reads as 2^127 here as in GGML.
///
/// ```text
/// byte 0       e
/// byte 1..17   qs[j]: bits 0..4 = q[j], bits 4..8 = q[j + 16]
/// ```
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BlockMxfp4 {
    /// Exponent.
    pub e: u8,
    /// Quants.
    pub qs: [u8; 16],
}

impl BlockMxfp4 {
    /// `2^(e - 128)`: half of the format's scale, for [`E2M1_TWICE`].
    #[inline(always)]
    pub(crate) fn scale(&self) -> f32 {
        half_power(self.e)
    }
}

/// `2^(e - 128)`.
#[inline(always)]
pub(crate) fn half_power(e: u8) -> f32 {
    let e = u32::from(e);
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (e - 1) << 23 })
}

impl Block for BlockMxfp4 {
    const DTYPE: DType = DType::Mxfp4;
    type Values = [f32; 32];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 32]) {
        dequantize_levels(self.scale(), &E2M1_TWICE, &self.qs, out);
    }
}

impl QuantizeBlock for BlockMxfp4 {
    fn quantize(x: &[f32; 32]) -> Self {
        let mut amax = 0.0f32;
        for v in x {
            if amax < v.abs() {
                amax = v.abs();
            }
        }
        // The exponent of the largest E2M1 value is 2. The logarithm is GGML's, rounded to f32:
        // a value just below a power of two counts as that power.
        let log = f64::from(amax).log2() as f32;
        let e = if amax > 0.0 { truncate(log.floor() - 2.0 + 127.0) as u8 } else { 0 };
        let mut block = Self { e, qs: [0; 16] };
        let scale = block.scale();
        let q = x.map(|v| nearest_e2m1(scale, v));
        block.qs = std::array::from_fn(|j| q[j] | q[j + 16] << 4);
        block
    }
}

/// The index of the value nearest to `x / scale`, the first among equals.
pub(super) fn nearest_e2m1(scale: f32, x: f32) -> u8 {
    let (mut index, mut least) = (0, f32::NAN);
    for (i, &value) in (0..).zip(&E2M1_TWICE) {
        let error = (f32::from(value) * scale - x).abs();
        if i == 0 || error < least {
            (index, least) = (i, error);
        }
    }
    index
}
