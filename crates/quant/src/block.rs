//! The block formats: layout, quantize and dequantize, one file a format; the table of all of them, `block_formats!`.
//!
//! Layouts are GGML's, byte for byte. Every struct has alignment 1, so that a block may lie
//! anywhere in a memory-mapped file. Quantizers reproduce llama.cpp's (`ggml_quantize_chunk`
//! without an importance matrix) bit for bit, which the golden test checks. The formats below 4
//! bits that choose from codebooks (`iq1_*`, `iq2_*`, `iq3_*`) are read only.

/// Calls a macro with arguments and all formats.
///
/// | group | formats |
/// |---|---|
/// | `panels` | weights in panels on the CPU, and in planes on GPUs |
/// | `rows` | weights with row dots alone |
/// | `codebooks` | as `rows`, but quantizing needs an importance matrix |
/// | `activations` | no weights |
///
/// | column | holds |
/// |---|---|
/// | type, block | variant of [`DType`], struct in this module |
/// | `fallback` | type for rows that are no whole number of blocks, as in llama.cpp |
/// | `panel` | unpacking in `packed/format`, and what its `Layout` has beside the block's order |
/// | `planes` | bytes of the block in each plane, see `wgpu/planes.rs` |
/// | `wgsl` | files with `load_quants16` |
/// | `chunk_stride` | chunks between the two chunks of a step of GEMV |
macro_rules! block_formats {
    ($callback:ident $args:tt) => {
        $callback! { $args
            panels {
                Q4_0: BlockQ4_0 {
                    fallback: F16, panel: Nibbles32<false, false> { scale_at: Some(0) },
                    planes: [2..18, 0..2], wgsl: ["format_q4_0.wgsl"], chunk_stride: 1
                };
                Q4_1: BlockQ4_1 {
                    fallback: F16, panel: Nibbles32<true, false> { u16_pair: Some(0) },
                    planes: [4..20, 0..4], wgsl: ["format_q4_1.wgsl"], chunk_stride: 1
                };
                Q5_0: BlockQ5_0 {
                    fallback: F16, panel: Nibbles32<false, true> { scale_at: Some(0), fifth_bits: Some(0) },
                    planes: [6..22, 2..6, 0..2], wgsl: ["format_q5_0.wgsl"], chunk_stride: 1
                };
                Q5_1: BlockQ5_1 {
                    fallback: F16, panel: Nibbles32<true, true> { u16_pair: Some(0), fifth_bits: Some(1) },
                    planes: [8..24, 4..8, 0..4], wgsl: ["format_q5_1.wgsl"], chunk_stride: 1
                };
                Q8_0: BlockQ8_0 {
                    fallback: F16, panel: Q8_0 { scale_at: Some(0), is_signed: true },
                    planes: [2..34, 0..2], wgsl: ["format_q8_0.wgsl"], chunk_stride: 1
                };
                Iq4Nl: BlockIq4Nl {
                    fallback: F16, panel: Iq4Nl { scale_at: Some(0) },
                    planes: [2..18, 0..2], wgsl: ["codebook_iq4.wgsl", "codebook.wgsl", "format_iq4_nl.wgsl"], chunk_stride: 1
                };
                Mxfp4: BlockMxfp4 {
                    fallback: F16, panel: Mxfp4 { scale_at: Some(0), scale_bytes: 1 },
                    planes: [1..17, 0..1], wgsl: ["codebook.wgsl", "format_mxfp4.wgsl"], chunk_stride: 1
                };
                Q2K: BlockQ2K {
                    fallback: Q4_0, panel: Q2K { order: &[(20, 21), (0, 20)], u16_pair: Some(0) },
                    planes: [16..80, 0..16, 80..84], wgsl: ["format_q2_k.wgsl"], chunk_stride: 2
                };
                Q3K: BlockQ3K {
                    fallback: Q4_0, panel: Q3K { scale_at: Some(108), order: &[(24, 27), (0, 24)] },
                    planes: [32..96, 0..32, 96..108, 108..110], wgsl: ["format_q3_k.wgsl"], chunk_stride: 2
                };
                Q4K: BlockQ4K {
                    fallback: Q5_0, panel: NibblesK<false> { u16_pair: Some(0) },
                    planes: [16..144, 0..16], wgsl: ["scales_k.wgsl", "format_q4_k.wgsl"], chunk_stride: 1
                };
                Q5K: BlockQ5K {
                    fallback: Q5_1, panel: NibblesK<true> { u16_pair: Some(0) },
                    planes: [48..176, 16..48, 0..16], wgsl: ["scales_k.wgsl", "format_q5_k.wgsl"], chunk_stride: 1
                };
                Q6K: BlockQ6K {
                    fallback: Q8_0, panel: Q6K { scale_at: Some(208), order: &Q6_K_ORDER },
                    planes: [0..128, 128..192, 192..208, 208..210], wgsl: ["format_q6_k.wgsl"], chunk_stride: 2
                };
                Iq4Xs: BlockIq4Xs {
                    fallback: Iq4Nl, panel: Iq4Xs { u16_pair: Some(0) },
                    planes: [8..136, 0..8], wgsl: ["codebook_iq4.wgsl", "codebook.wgsl", "format_iq4_xs.wgsl"], chunk_stride: 1
                };
            }
            rows {
                Nvfp4: BlockNvfp4 { fallback: Iq4Nl };
                Tq1_0: BlockTq1_0 { fallback: Q4_0 };
                Tq2_0: BlockTq2_0 { fallback: Q4_0 };
            }
            codebooks {
                Iq1S: BlockIq1S {};
                Iq1M: BlockIq1M {};
                Iq2Xxs: BlockIq2Xxs {};
                Iq2Xs: BlockIq2Xs {};
                Iq2S: BlockIq2S {};
                Iq3Xxs: BlockIq3Xxs {};
                Iq3S: BlockIq3S {};
            }
            activations {
                Q8_1: BlockQ8_1 {};
                Q8K: BlockQ8K {};
            }
        }
    };
}
pub(crate) use block_formats;

mod grid;
mod iq1_m;
mod iq1_s;
mod iq2_s;
mod iq2_xs;
mod iq2_xxs;
mod iq3_s;
mod iq3_xxs;
mod iq4_nl;
mod iq4_xs;
mod mxfp4;
mod nvfp4;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
mod q8_1;
mod q8_k;
mod row;
mod search;
mod tq1_0;
mod tq2_0;

use bytemuck::{Pod, Zeroable};
use stonechat_compute::DType;

pub use iq1_m::BlockIq1M;
pub use iq1_s::BlockIq1S;
pub use iq2_s::BlockIq2S;
pub use iq2_xs::BlockIq2Xs;
pub use iq2_xxs::BlockIq2Xxs;
pub use iq3_s::BlockIq3S;
pub use iq3_xxs::BlockIq3Xxs;
pub use iq4_nl::BlockIq4Nl;
pub use iq4_xs::BlockIq4Xs;
pub use mxfp4::BlockMxfp4;
pub use nvfp4::BlockNvfp4;
pub use q2_k::BlockQ2K;
pub use q3_k::BlockQ3K;
pub use q4_0::BlockQ4_0;
pub use q4_1::BlockQ4_1;
pub use q4_k::BlockQ4K;
pub use q5_0::BlockQ5_0;
pub use q5_1::BlockQ5_1;
pub use q5_k::BlockQ5K;
pub use q6_k::BlockQ6K;
pub use q8_0::BlockQ8_0;
pub use q8_1::BlockQ8_1;
pub use q8_k::BlockQ8K;
pub(crate) use row::{Quants, RowBlock};
pub use tq1_0::BlockTq1_0;
pub use tq2_0::BlockTq2_0;

pub(crate) use iq4_nl::LEVELS;
pub(crate) use mxfp4::{E2M1_TWICE, half_power};

/// A block format: `BLOCK_LEN` consecutive elements of a row in `size_of::<Self>()` bytes.
pub trait Block: Pod + Send + Sync {
    /// The format's row in the dtype table.
    const DTYPE: DType;
    /// Elements in a block.
    const BLOCK_LEN: usize;
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
pub struct Half([u8; 2]);

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

    /// The value with the other sign.
    #[inline(always)]
    #[must_use]
    pub fn negated(self) -> Self {
        Self([self.0[0], self.0[1] ^ 0x80])
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
fn truncate(x: f32) -> i32 {
    if (-2_147_483_648.0..2_147_483_648.0).contains(&x) { x as i32 } else { i32::MIN }
}

/// The value of largest magnitude, the first if several have it; 0 for zeros.
fn signed_max(x: &[f32]) -> f32 {
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
fn min_max(x: &[f32]) -> (f32, f32) {
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

/// `1 / d`, or 0 where `d` is 0.
fn reciprocal(d: f32) -> f32 {
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
fn unpack_scales_mins(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
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
fn pack_scales_mins(scales: &[u8; 8], mins: &[u8; 8]) -> [u8; 12] {
    let mut packed = [0; 12];
    for j in 0..4 {
        packed[j] = scales[j] | (scales[j + 4] >> 4) << 6;
        packed[j + 4] = mins[j] | (mins[j + 4] >> 4) << 6;
        packed[j + 8] = (scales[j + 4] & 15) | (mins[j + 4] & 15) << 4;
    }
    packed
}

#[cfg(test)]
mod tests;
