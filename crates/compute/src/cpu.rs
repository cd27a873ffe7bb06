//! Dense f32 kernels on the CPU, generic over the SIMD token, one op per file.
//!
//! Each op checks its shapes once, then runs on caller buffers. Activations and sums are f32; weights may be f16 or bf16,
//! keys and values f16 or 8-bit integers. Not here: quantized weights (`stonechat-quant`) and anything specific to a
//! model.
//!
//! | file | op |
//! |---|---|
//! | `matrix` | strided views |
//! | `math` | vector `exp`, `erf`, `tanh` and activations, inlined into the other kernels |
//! | `elementwise` | sum of two matrices, soft cap |
//! | `norm` | layer norm and RMS norm of rows |
//! | `log_sum_exp` | reductions of logits |
//! | `logit_filter` | suppression of columns of logits |
//! | `rope` | RMS norm and rotary embedding of heads |
//! | `gated` | `act(gate) * up` of a gated MLP (`SwiGLU`, `GeGLU`) |
//! | `matmul` | dispatch to `gemv` (decode) or `gemm` (prefill), with an epilogue |
//! | `conv` | convolutions over time |
//! | `lstm` | LSTM step |
//! | `moe` | routing of tokens to experts, order by expert |
//! | `top_k` | k largest values of a row |
//! | `kv`, `attention` | paged KV cache, attention over it |

mod attention;
pub mod conv;
mod element;
pub mod elementwise;
mod epilogue;
mod gated;
mod gemm;
mod gemv;
mod kv;
mod log_sum_exp;
mod logit_filter;
mod lstm;
mod math;
mod matmul;
mod matrix;
mod moe;
mod norm;
mod rope;
mod row_tasks;
#[cfg(test)]
mod test_data;
mod top_k;

pub use attention::{Attention, attention};
pub use epilogue::Epilogue;
pub use gated::gated;
pub use gemm::DensePanels;
pub use kv::KvPool;
pub use log_sum_exp::{log_sum_exp, max};
pub use lstm::Lstm;
pub use matmul::{DenseWeight, matmul, matmul_dequantized, matmul_panels};
pub use matrix::{MatMut, MatRef, SharedMut};
pub use moe::{RoutedExpert, route, sort_by_expert};
pub use norm::{layer_norm, layer_norm_rows, rms_norm, rms_norm_rows};
pub use rope::rope;
pub use top_k::{TopKEntry, top_k};
