//! The block formats: layout, quantize and dequantize, one file per format; their table, `block_formats!`.
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
/// | `codebook` | values of 4-bit codes, for GPUs; empty if values are `code - zero` |
/// | `cuda` | bits of a code, the code of 0, `cuda::format::Header` |
macro_rules! block_formats {
    ($callback:ident $args:tt) => {
        $callback! { $args
            panels {
                Q4_0: BlockQ4_0 {
                    fallback: F16, panel: Nibbles32<false, false> { scale_at: Some(0) },
                    planes: [2..18, 0..2], wgsl: ["format_q4_0.wgsl"], chunk_stride: 1,
                    codebook: [], cuda: (4, 8, Scale)
                };
                Q4_1: BlockQ4_1 {
                    fallback: F16, panel: Nibbles32<true, false> { u16_pair: Some(0) },
                    planes: [4..20, 0..4], wgsl: ["format_q4_1.wgsl"], chunk_stride: 1,
                    codebook: [], cuda: (4, 0, ScaleMin)
                };
                Q5_0: BlockQ5_0 {
                    fallback: F16, panel: Nibbles32<false, true> { scale_at: Some(0), fifth_bits: Some(0) },
                    planes: [6..22, 2..6, 0..2], wgsl: ["format_q5_0.wgsl"], chunk_stride: 1,
                    codebook: [], cuda: (5, 16, Scale)
                };
                Q5_1: BlockQ5_1 {
                    fallback: F16, panel: Nibbles32<true, true> { u16_pair: Some(0), fifth_bits: Some(1) },
                    planes: [8..24, 4..8, 0..4], wgsl: ["format_q5_1.wgsl"], chunk_stride: 1,
                    codebook: [], cuda: (5, 0, ScaleMin)
                };
                Q8_0: BlockQ8_0 {
                    fallback: F16, panel: Q8_0 { scale_at: Some(0), is_signed: true },
                    planes: [2..34, 0..2], wgsl: ["format_q8_0.wgsl"], chunk_stride: 1,
                    codebook: [], cuda: (8, 128, Scale)
                };
                Iq4Nl: BlockIq4Nl {
                    fallback: F16, panel: Iq4Nl { scale_at: Some(0) },
                    planes: [2..18, 0..2], wgsl: ["codebook.wgsl", "format_iq4_nl.wgsl"], chunk_stride: 1,
                    codebook: [LEVELS], cuda: (4, 0, Scale)
                };
                Mxfp4: BlockMxfp4 {
                    fallback: F16, panel: Mxfp4 { scale_at: Some(0), scale_bytes: 1 },
                    planes: [1..17, 0..1], wgsl: ["codebook.wgsl", "format_mxfp4.wgsl"], chunk_stride: 1,
                    codebook: [E2M1_TWICE], cuda: (4, 0, Scale)
                };
                Q2K: BlockQ2K {
                    fallback: Q4_0, panel: Q2K { order: &[(20, 21), (0, 20)], u16_pair: Some(0) },
                    planes: [16..80, 0..16, 80..84], wgsl: ["format_q2_k.wgsl"], chunk_stride: 2,
                    codebook: [], cuda: (2, 0, Nibbles16)
                };
                Q3K: BlockQ3K {
                    fallback: Q4_0, panel: Q3K { scale_at: Some(108), order: &[(24, 27), (0, 24)] },
                    planes: [32..96, 0..32, 96..108, 108..110], wgsl: ["format_q3_k.wgsl"], chunk_stride: 2,
                    codebook: [], cuda: (3, 4, Int8x16)
                };
                Q4K: BlockQ4K {
                    fallback: Q5_0, panel: NibblesK<false> { u16_pair: Some(0) },
                    planes: [16..144, 0..16], wgsl: ["scales_k.wgsl", "format_q4_k.wgsl"], chunk_stride: 1,
                    codebook: [], cuda: (4, 0, Pairs32)
                };
                Q5K: BlockQ5K {
                    fallback: Q5_1, panel: NibblesK<true> { u16_pair: Some(0) },
                    planes: [48..176, 16..48, 0..16], wgsl: ["scales_k.wgsl", "format_q5_k.wgsl"], chunk_stride: 1,
                    codebook: [], cuda: (5, 0, Pairs32)
                };
                Q6K: BlockQ6K {
                    fallback: Q8_0, panel: Q6K { scale_at: Some(208), order: &Q6_K_ORDER },
                    planes: [0..128, 128..192, 192..208, 208..210], wgsl: ["format_q6_k.wgsl"], chunk_stride: 2,
                    codebook: [], cuda: (6, 32, Int8x16)
                };
                Iq4Xs: BlockIq4Xs {
                    fallback: Iq4Nl, panel: Iq4Xs { u16_pair: Some(0) },
                    planes: [8..136, 0..8], wgsl: ["codebook.wgsl", "format_iq4_xs.wgsl"], chunk_stride: 1,
                    codebook: [LEVELS], cuda: (4, 0, Int8x16)
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

mod definition;
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

use stonechat_compute::DType;

pub use definition::{Block, Half, QuantizeBlock};
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

macro_rules! sizes {
    ([] $($group:ident { $($variant:ident: $Block:ident { $($columns:tt)* };)* })*) => {
        $($(const _: () = assert!(
            size_of::<$Block>() == DType::$variant.block_bytes() && align_of::<$Block>() == 1
        );)*)*
    };
}
block_formats!(sizes []);

#[cfg(test)]
mod tests;
