//! Matmuls with weights on NVIDIA GPUs.
//!
//! | file | holds |
//! |---|---|
//! | `format` | formats of weights in panels, see `kernels/format.cuh` |
//! | `matrix` | [`CudaMatrix`]: weights on the device |
//! | `params` | arguments of matmuls, parameters of the kernels |
//! | `gemv`, `gemm` | block shapes and launches for few rows, for many rows |
//! | `matmul` | matmuls with one matrix, a group, a gated pair |
//! | `experts` | matmuls with the weights of experts |
//! | `dense` | matmuls with f32 weights |
//! | `embed` | embedding lookups |

mod dense;
mod embed;
mod experts;
mod format;
mod gemm;
mod gemv;
#[cfg(test)]
mod launches;
mod matmul;
mod matrix;
mod params;

use stonechat_compute::cuda::Archive;

pub use embed::embed;
pub use experts::{expert_block_len, matmul_experts};
pub use format::TYPE_PAIRS;
pub use gemv::{MAX_GEMV_ROWS, max_row_cols};
pub use matmul::{matmul, matmul_gated, matmul_group};
pub use matrix::CudaMatrix;
pub use params::{MAX_GROUP, Operand, Scratch};

/// Kernels of this crate.
static ARCHIVE: Archive = stonechat_compute::cuda_archive!();
