//! Packed weights: `y[M, N] = x[M, K] * W[N, K]^T` for any `M`, with `W` in panels of 16 rows.
//!
//! GGML's blocks lie along a row, so that a dot product ends in a sum across lanes and a scale per block and row. A panel
//! has the 32-bit words of the blocks of 16 rows side by side:
//!
//! ```text
//! [N, K] in GGML's blocks                     panel of rows 0..16: U32x16 vectors
//!   row 0:  w00 w01 w02 ...                     | w00 w10 w20 ... wf0 |
//!   row 1:  w10 w11 w12 ...                     | w01 w11 w21 ... wf1 |
//!   ...                                         | ...                 |
//!   row 15: wf0 wf1 wf2 ...
//! ```
//!
//! Four quants of each row meet four broadcast activations in one instruction, sums never cross lanes, and scales are a
//! vector. Packing loses nothing: [`PackedMatrix::dequantize_row`] restores the row's blocks.
//!
//! | module | holds |
//! |---|---|
//! | `matrix`, `panel` | weights in panels |
//! | `layout`, `block` | positions of a block in a panel; loads with prefetch |
//! | `format` | unpacking of each format |
//! | `kernels` | the kernels of a format on a tier, held by the matrix |
//! | `gemv` | row-major `x`: up to 16 rows (decode), any number on NEON and the scalar tier |
//! | `gemm` | more rows (prefill) |
//! | `amx` | more rows on AMX tiles |
//! | `matmul` | matmuls of one input as one loop of tasks |
//! | `gated` | gate and up projections of a gated MLP as one loop |

#[cfg(target_arch = "x86_64")]
mod amx;
mod block;
mod format;
mod gated;
mod gemm;
mod gemv;
mod kernels;
mod layout;
mod matmul;
mod matrix;
mod panel;
mod task;

pub use gated::{PackedRows, gated_packed};
pub use matmul::{PackedMatmul, matmul_packed};
pub use matrix::PackedMatrix;

#[cfg(test)]
mod tests;
