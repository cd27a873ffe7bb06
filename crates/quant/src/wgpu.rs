//! Matrices of every format on GPUs: rows of blocks cut into planes, and the kernels that read them.
//!
//! | file | holds |
//! |---|---|
//! | `planes` | the order of a row's bytes on the device |
//! | `matrix` | [`GpuMatrix`]: loading, in parts where a kernel cannot see it whole |
//! | `matmul` | products with activations: [`matmul`], [`matmul_all`] |
//! | `gemv` | those of few rows: [`gated_product`], [`matmul_experts`] |
//! | `embed` | rows of a table |
//! | `format_*.wgsl` | 16 adjacent weights of a row: `codes16`, or `dequantize16` of formats that have no codes |
//! | `gemm` | products of many rows by cooperative matrices |
//! | `gemv*.wgsl`, `gemm*.wgsl` | few and many rows of activations, over any format |

mod embed;
mod gemm;
mod gemv;
mod matmul;
mod matrix;
mod normed;
mod planes;

pub use embed::{GpuEmbed, embed};
pub use gemv::{ExpertProduct, GatedOutput, MAX_GEMV_ROWS, gated_product, is_pair, matmul_experts};
pub use matmul::{GpuEpilogue, matmul, matmul_all, warm};
pub use matrix::GpuMatrix;
pub use normed::Normed;

use stonechat_compute::wgpu::{Matrices, Source, Variant};

/// Every shader of this crate for `variant`, for tests.
#[must_use]
pub fn sources(variant: Variant) -> Vec<Source> {
    planes::FORMATS
        .iter()
        .flat_map(|format| {
            let mut all = matmul::sources(format, variant);
            all.push(embed::source(format, variant));
            all
        })
        .collect()
}

/// Every shader of this crate that uses `matrices`, for tests.
#[must_use]
pub fn matrix_sources(matrices: Matrices) -> Vec<Source> {
    planes::FORMATS.iter().flat_map(|format| gemm::sources(format, matrices)).collect()
}
