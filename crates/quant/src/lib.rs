//! GGML's block formats: layout, quantize, dequantize, and integer matmuls.
//!
//! | module | holds |
//! |---|---|
//! | `block` | one file per format: bit layout, quantizer, dequantizer |
//! | `rows` | quantizing and dequantizing rows by dtype, dense types included |
//! | `activation` | activations in q8 blocks, in the layout of each kernel |
//! | `packed` | weights in panels of 16 rows: GEMV, GEMM and AMX kernels |
//! | `block_gemv`, `dot` | GEMV on weights in GGML's block order, for formats without panels |
//! | `peak` | peak 8-bit multiply-add rate of a core |
//! | `wgpu` | matmuls on GPUs |
//! | `cuda` | matmuls on NVIDIA GPUs |
//!
//! Not here: files, dense matrix products, model names.

mod activation;
pub mod block;
mod block_gemv;
#[cfg(feature = "cuda")]
pub mod cuda;
mod dot;
mod error;
mod packed;
mod peak;
mod rows;
#[cfg(feature = "wgpu")]
pub mod wgpu;

pub use activation::ActivationBuffer;
pub use block_gemv::{QuantMatrix, gemv_blocks, kernel_name};
pub use error::{Error, Result};
pub use packed::{PackedMatmul, PackedMatrix, PackedRows, gated_packed, matmul_packed};
pub use peak::int8_peak;
pub use rows::{
    dequantize_row, dequantize_rows, fitting_dtype, is_float, needs_importance, quantizable,
    quantize_rows,
};
