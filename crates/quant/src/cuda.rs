//! Products with weights on NVIDIA GPUs.
//!
//! | file | holds |
//! |---|---|
//! | `matrix` | [`CudaMatrix`]: weights in strips, see `kernels/format.cuh` |
//! | `gemv` | blocks of GEMV |
//! | `matmul` | products, of one matrix, of groups, of gated pairs, of experts; embeddings |

mod gemm;
mod gemv;
#[cfg(test)]
mod launches;
mod matmul;
mod matrix;

use stonechat_compute::cuda::Archive;

pub use matmul::{
    CudaEmbed, CudaEpilogue, ExpertMatmul, MAX_GEMV_ROWS, Operand, RowNorm, Scratch, can_group,
    can_pair, embed, expert_block_len, fuses_norm, matmul, matmul_experts, matmul_gated,
    matmul_group,
};
pub use matrix::CudaMatrix;

/// Kernels of this crate.
static ARCHIVE: Archive = stonechat_compute::cuda_archive!();
