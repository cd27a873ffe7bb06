//! The backend vocabulary of ops, the layers built on it and the paged KV cache.
//!
//! Not here: architectures (they live in the model crates) and kernels (they live in
//! `stonechat-compute` and `stonechat-quant`).
//!
//! | file | holds |
//! |---|---|
//! | `backend.rs` | [`Backend`]: every op with its contract; [`View`], [`Rows`], [`Epilogue`] |
//! | `cpu.rs` | [`Cpu`]: the ops on this machine's SIMD |
//! | `wgpu.rs` | `Wgpu`: the ops on any GPU (feature `wgpu`) |
//! | `kv_cache.rs` | [`KvCache`]: pages with reference counts and copy-on-write; [`Sequence`] |
//! | `linear.rs`, `norm.rs`, `conv1d.rs` | weights plus the op that applies them |
//! | `sample.rs` | [`sample`]: the sampling chain |
//!
//! Shape letters: `T` token or time rows, `D` `d_model`, `H` heads, `G` KV heads, `C` `head_dim`,
//! `V` vocabulary, `N`/`K` rows and columns of a weight matrix.
#![forbid(unsafe_code)]

mod backend;
mod conv1d;
mod cpu;
mod error;
mod kv_cache;
mod linear;
mod norm;
pub mod sample;
#[cfg(feature = "wgpu")]
mod wgpu;

pub use backend::{
    Activation, Attention, Backend, Embed, Epilogue, Experts, GatedActivation, GatedMlp, KvDType,
    KvRow, KvShape, LoadStats, MAX_TOP_K, MAX_TOP_K_COLS, MatmulOp, MatrixSource, Precision,
    QueryRow, Rope, RopePairs, Rotation, Routing, Rows, TopKEntry, View, warmup_batch_sizes,
};
pub use conv1d::Conv1d;
pub use cpu::{Cpu, CpuMatrix, OpTime, Repack};
pub use error::Error;
pub use kv_cache::{KvCache, PAGE_LEN, Sequence};
pub use linear::Linear;
pub use norm::{LayerNorm, Norm, RmsNorm};
#[cfg(feature = "wgpu")]
pub use wgpu::Wgpu;
