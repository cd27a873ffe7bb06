//! Programs of ops, devices that run them, layers and the paged KV cache.
//!
//! Not here: architectures (in the model crates) and kernels (in `stonechat-compute` and `stonechat-quant`).
//!
//! | file | holds |
//! |---|---|
//! | `program.rs`, `recorder.rs` | [`Program`]: a forward pass as data; [`Recorder`] |
//! | `fuse.rs` | [`fuse()`]: a recorded program to the ops that a device has kernels for; lowering of ops of several kernels |
//! | `shard.rs` | [`shard()`]: tensor parallelism, the program of each rank of a group of devices |
//! | `plan.rs` | [`plan_slots`]: memory of a program's values |
//! | `device.rs` | [`Device`], [`Executable`] |
//! | `inputs.rs` | [`Step`]: inputs of a step, and their checks for all devices |
//! | `cpu.rs` | [`Cpu`]: SIMD and threads |
//! | `wgpu.rs` | `Wgpu`: any GPU (feature `wgpu`) |
//! | `cuda.rs` | `Cuda`: NVIDIA GPUs (feature `cuda`) |
//! | `step_words.rs` | inputs of a step as the words that kernels of GPUs read |
//! | `pages.rs` | [`Pages`]: reference counts and copy-on-write of KV pages; [`Sequence`] |
//! | `states.rs` | slots and checkpoints of states without positions: convolutions, linear attention |
//! | `step.rs` | [`Sequences`] of a state; [`StepPlan`]: a ragged batch of tokens, with rollback |
//! | `linear.rs`, `norm.rs`, `conv1d.rs` | layers: weights and the op that they record |
//! | `load_stats.rs` | [`LoadStats`]: bytes and time of loading |
//! | `host_threads.rs`, `tasks.rs` | threads beside a GPU, items as tasks of threads |
//! | `box_future.rs` | [`BoxFuture`]: `Send` where threads exist |
//!
//! Shape letters: `T` token or time rows, `D` `d_model`, `F` `d_ff`, `H` heads, `G` KV heads, `C` `head_dim`,
//! `E` experts, `V` vocabulary, `N`/`K` rows and columns of a weight matrix, `R` rotated channels.
#![forbid(unsafe_code)]

mod box_future;
mod conv1d;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod device;
mod error;
mod fuse;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod gpu;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod host_threads;
mod inputs;
mod linear;
mod load_stats;
mod norm;
mod pages;
mod plan;
mod program;
mod recorder;
mod shard;
mod states;
mod step;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod step_words;
mod tasks;
#[cfg(test)]
mod testing;
mod weight_data;
#[cfg(feature = "wgpu")]
mod wgpu;

pub use box_future::BoxFuture;
pub use conv1d::Conv1d;
pub use cpu::{Cpu, Repack};
#[cfg(feature = "cuda")]
pub use cuda::{Cuda, CudaGroup};
pub use device::{
    Device, DeviceApi, Executable, HostFetches, HostTask, LogMelKernel, MatrixSource, OpTime,
    PortRange, warmup_batch_sizes,
};
pub use error::Error;
pub use fuse::{
    Capabilities, Capability, CapabilityKind, Conv1dKernels, Limit, MoeKernels, OpKind, fuse,
};
pub use inputs::{AttentionRows, CheckedStep, InputLimits, Step, resolve_token, token_reference};
pub use linear::Linear;
pub use load_stats::LoadStats;
pub use norm::Norm;
pub use pages::{KvFull, PageCopy, PageRef, Pages, Sequence};
pub use plan::{SlotInfo, SlotPlan, plan_slots};
pub use program::{Counts, Node, Program, RowClass, Segment, SegmentName};
pub use recorder::Recorder;
pub use shard::{Shards, shard, sharded_matrix, sharded_values};
pub use step::{PlanError, Prefix, Run, Sequences, Slot, StepInputs, StepLimits, StepPlan};
pub use stonechat_compute::cpu::TopKEntry;
pub use stonechat_compute::op;
pub use stonechat_compute::op::{
    Activation, GatedActivation, KvDType, KvRow, KvShape, LogitFilter, MAX_TOP_K, MAX_TOP_K_COLS,
    PAGE_LEN, Precision, QueryRow, RopePairs, Routing, StateRun,
};
#[cfg(feature = "wgpu")]
pub use wgpu::Wgpu;
