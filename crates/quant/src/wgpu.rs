//! Weight matrices of every format on GPUs, repacked into planes, and the kernels that read them.
//!
//! | file | holds |
//! |---|---|
//! | `planes` | layout of a row on the device, table of the formats |
//! | `matrix` | [`GpuMatrix`]: loading, split by rows if larger than a binding |
//! | `matmul` | [`matmul`]: choice of the kernel |
//! | `gemv` | up to [`MAX_GEMV_ROWS`] rows of activations: [`matmul_group`], [`matmul_gated`], [`matmul_experts`] |
//! | `gemm` | more rows, by cooperative matrices |
//! | `input_norm` | RMS norm fused into GEMV |
//! | `embed` | embedding lookup |
//! | `format_*.wgsl` | 16 adjacent weights of a row: `load_quants16` of quantized formats, `dequantize16` of float formats |

mod embed;
mod gemm;
mod gemv;
mod input_norm;
mod matmul;
mod matmul_args;
mod matrix;
mod planes;

pub use embed::embed;
pub use gemv::{
    GATE_UP_BUFFERS, GATE_UP_ROWS, GEMV_BUFFERS, GROUP_BUFFERS, MAX_GEMV_ROWS, MAX_GROUP,
    NormBound, NormKernel, Q8_OUTPUT_MAX_ROWS, matmul_experts, matmul_gated, matmul_group,
};
pub use input_norm::NORM_BUFFERS;
pub use matmul::matmul;
pub use matmul_args::GpuInput;
pub use matrix::GpuMatrix;

use stonechat_compute::wgpu::{CoopMatrices, Source, Variant};

/// Every shader of this crate for `variant` but those with cooperative matrices, for tests.
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

/// Every shader of this crate with cooperative matrices, for tests.
#[must_use]
pub fn coop_sources(matrices: CoopMatrices) -> Vec<Source> {
    planes::FORMATS.iter().flat_map(|format| gemm::sources(format, matrices)).collect()
}
