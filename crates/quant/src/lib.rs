//! GGML's block formats: layout, quantize, dequantize, and matrix products that stay in integers.
//!
//! | module | holds |
//! |---|---|
//! | `block` | one file a format: bit layout, quantizer, dequantizer |
//! | `rows` | rows of any float type by dtype, dense types included |
//! | `activation` | 8-bit activations |
//! | `simd` | [`simd::I8Dot`], the 8-bit dot product of each instruction set |
//! | `dot` | fused dot products: formats over the trait |
//! | `matmul` | few rows of activations times a matrix of blocks |
//! | `packed` | any number of them times a matrix whose rows lie side by side |
//! | `peak` | the most multiply-adds that a core can do |
//!
//! Not here: files, dense matrix products, model names.

mod activation;
pub mod block;
mod dot;
mod error;
mod matmul;
mod packed;
mod peak;
mod rows;
pub mod simd;
#[cfg(feature = "wgpu")]
pub mod wgpu;

pub use activation::ActivationBuffer;
pub use error::{Error, Result};
pub use matmul::{QuantMatrix, kernel_name, matmul};
pub use packed::{PackedMatrix, PackedProduct, PackedRows, gated_packed, matmul_packed};
pub use peak::int8_peak;
pub use rows::{
    dequantize_row, dequantize_rows, fitting_dtype, is_float, needs_importance, quantize_rows,
};
