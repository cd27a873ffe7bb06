//! Traits of block formats, and helpers of their quantizers.

use bytemuck::{Pod, Zeroable};
use stonechat_compute::DType;

/// A block format: `BLOCK_LEN` consecutive elements of a row in `size_of::<Self>()` bytes.
pub trait Block: Pod + Send + Sync {
    /// The format's row in the dtype table.
    const DTYPE: DType;
    /// Elements in a block.
    const BLOCK_LEN: usize = Self::DTYPE.block_len();
    /// `[f32; BLOCK_LEN]`.
    type Values: Pod;

    /// Dequantizes to exactly the values the format defines.
    fn dequantize(&self, out: &mut Self::Values);
}

/// A format that can be quantized to without an importance matrix.
pub trait QuantizeBlock: Block {
    /// Quantizes `x` as llama.cpp does, bit for bit.
    #[must_use]
    fn quantize(x: &Self::Values) -> Self;
}

/// An f16 at any address, little-endian.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct Half(pub(super) [u8; 2]);

impl Half {
    /// The bits.
    #[inline(always)]
    #[must_use]
    pub fn to_bits(self) -> u16 {
        u16::from_le_bytes(self.0)
    }

    /// The value, computed without a branch or a call so that loops around it vectorise:
    /// multiplying by 2^112 rebiases the exponent and normalises subnormals, exactly.
    #[inline(always)]
    #[must_use]
    pub fn to_f32(self) -> f32 {
        let bits = u32::from(self.to_bits());
        let magnitude = (bits & 0x7fff) << 13;
        let finite = f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23);
        let special = f32::from_bits(magnitude | 0x7f80_0000);
        let value = if finite < 65536.0 { finite } else { special };
        f32::from_bits(value.to_bits() | (bits & 0x8000) << 16)
    }

    /// Rounds to the nearest f16, ties to even.
    #[must_use]
    pub fn from_f32(value: f32) -> Self {
        Self(half::f16::from_f32(value).to_bits().to_le_bytes())
    }
}

/// Truncates as x86 does: NaN and values out of the range of `i32` become `i32::MIN`. Scales below the smallest normal
/// f32 make quotients overflow, and llama.cpp's quantizers then store the low byte of this conversion.
#[inline(always)]
pub(super) fn truncate(x: f32) -> i32 {
    if (-2_147_483_648.0..2_147_483_648.0).contains(&x) { x as i32 } else { i32::MIN }
}

/// The value of largest magnitude, the first if several have it; 0 for zeros.
pub(super) fn signed_max(x: &[f32]) -> f32 {
    let (mut amax, mut max) = (0.0f32, 0.0);
    for &v in x {
        if amax < v.abs() {
            amax = v.abs();
            max = v;
        }
    }
    max
}

/// Minimum and maximum.
pub(super) fn min_max(x: &[f32]) -> (f32, f32) {
    let (mut min, mut max) = (f32::MAX, -f32::MAX);
    for &v in x {
        if v < min {
            min = v;
        }
        if v > max {
            max = v;
        }
    }
    (min, max)
}

/// 32 values of 4 bits, one per byte: the low ones first.
#[inline(always)]
pub(super) fn nibbles(qs: &[u8; 16]) -> [u8; 32] {
    let mut q = [0; 32];
    let (low, high) = q.split_at_mut(16);
    for j in 0..16 {
        low[j] = qs[j] & 15;
    }
    for j in 0..16 {
        high[j] = qs[j] >> 4;
    }
    q
}

/// `1 / d`, or 0 where `d` is 0.
pub(super) fn reciprocal(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// The eight 6-bit scales and eight 6-bit mins that `Q4_K` and `Q5_K` pack into 12 bytes.
///
/// ```text
/// byte 0..4    s[0..4] in bits 0..6, high 2 bits of s[4..8] in bits 6..8
/// byte 4..8    m[0..4] in bits 0..6, high 2 bits of m[4..8] in bits 6..8
/// byte 8..12   low 4 bits of s[4..8] in bits 0..4, low 4 bits of m[4..8] in bits 4..8
/// ```
#[inline(always)]
pub(super) fn unpack_scales_mins(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let word =
        |i: usize| u32::from_le_bytes([packed[i], packed[i + 1], packed[i + 2], packed[i + 3]]);
    let (a, b, c) = (word(0), word(4), word(8));
    let join = |low: u32, high: u32| {
        let high = (c >> low & 0x0f0f_0f0f) | (high >> 6 & 0x0303_0303) << 4;
        u64::from(high) << 32
    };
    let scales = u64::from(a & 0x3f3f_3f3f) | join(0, a);
    let mins = u64::from(b & 0x3f3f_3f3f) | join(4, b);
    (scales.to_le_bytes(), mins.to_le_bytes())
}

/// The inverse of [`unpack_scales_mins`]; values are below 64.
pub(super) fn pack_scales_mins(scales: &[u8; 8], mins: &[u8; 8]) -> [u8; 12] {
    let mut packed = [0; 12];
    for j in 0..4 {
        packed[j] = scales[j] | (scales[j + 4] >> 4) << 6;
        packed[j + 4] = mins[j] | (mins[j + 4] >> 4) << 6;
        packed[j + 8] = (scales[j + 4] & 15) | (mins[j + 4] & 15) << 4;
    }
    packed
}
