//! Dense f32 kernels on the CPU, generic over the SIMD token, one op a file.
//!
//! Each op checks its shapes once, then runs on caller buffers. Values are f32 and sums are f32;
//! weights may be f16 or bf16, keys and values f16 or 8-bit integers. Not here: quantized weights (`stonechat-quant`)
//! and anything that knows a model.
//!
//! | file | op |
//! |---|---|
//! | `matrix` | strided views |
//! | `math` | vector `exp`, `erf`, `tanh` and activations that the others inline |
//! | `layer_norm`, `rms_norm` | norms of rows |
//! | `log_sum_exp` | reductions of logits |
//! | `rope` | norm and rotation of heads |
//! | `gated` | product of an activated and a plain half of a feed-forward network |
//! | `matmul` | choice between `gemv` (few rows) and `gemm` (many), epilogue |
//! | `conv1d` | convolution as matmul over overlapping rows |
//! | `lstm` | a step of a long short-term memory |
//! | `top_k` | the greatest values of a row |
//! | `kv`, `attention` | paged keys and values, attention over them |

mod attention;
mod conv1d;
mod element;
mod epilogue;
mod gated;
mod gemm;
mod gemv;
mod kv;
mod layer_norm;
mod log_sum_exp;
mod lstm;
mod math;
mod matmul;
mod matrix;
mod rms_norm;
mod rope;
mod row_tasks;
#[cfg(test)]
mod test_data;
mod top_k;

pub use attention::{Attention, Precision, QueryRow, attention};
pub use conv1d::conv1d;
pub use epilogue::{Activation, Epilogue};
pub use gated::{GatedActivation, gated};
pub use kv::{KvDType, KvLayout, KvPool, KvRow, PAGE_LEN};
pub use layer_norm::{LayerNorm, layer_norm};
pub use log_sum_exp::{log_sum_exp, max};
pub use lstm::Lstm;
pub use matmul::{DenseWeight, matmul, matmul_dequantized};
pub use matrix::{MatMut, MatRef, SharedMut};
pub use rms_norm::{RmsNorm, rms_norm};
pub use rope::{Rope, RopePairs, Rotation, rope};
pub use top_k::{TopKEntry, top_k};
