//! Matrices of every format on GPUs: rows of blocks cut into planes, and the kernels that read them.
//!
//! | file | holds |
//! |---|---|
//! | `planes` | the order of a row's bytes on the device |
//! | `matrix` | [`GpuMatrix`]: loading, in parts where a kernel cannot see it whole |
//! | `matmul` | products with activations: [`matmul`] |
//! | `gemv` | those of few rows: [`gated_product`], [`matmul_experts`] |
//! | `embed` | rows of a table |
//! | `format_*.wgsl` | 16 adjacent weights of a row: `codes16`, or `dequantize16` of formats that have no codes |
//! | `gemv*.wgsl`, `gemm.wgsl` | few and many rows of activations, over any format |

mod embed;
mod gemv;
mod matmul;
mod matrix;
mod planes;

pub use embed::{GpuEmbed, embed};
pub use gemv::{
    ExpertProduct, GatedOutput, Grouped, MAX_GEMV_ROWS, MAX_GROUP, gated_product, is_group,
    is_pair, matmul_experts, matmul_group,
};
pub use matmul::{GpuEpilogue, matmul, warm};
pub use matrix::GpuMatrix;

use stonechat_compute::wgpu::{Source, Variant};

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
