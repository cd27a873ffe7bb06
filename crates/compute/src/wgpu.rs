//! GPUs through wgpu: Vulkan, Metal, DirectX 12 and WebGPU.
//!
//! Ops append dispatches to a recording; nothing reaches the device until a result is read, so that
//! a whole forward pass is one submission. After warm-up a pass makes no buffer and no bind group.
//!
//! | file | holds |
//! |---|---|
//! | `adapter` | [`Adapter`]: the GPUs of this machine, what they can do, which to use |
//! | `gpu` | [`Gpu`]: an open device with its kernels and its recording |
//! | `recorder` | the recording and how it is submitted |
//! | `buffer` | [`GpuBuffer`], staging and readback |
//! | `kernel_cache` | compiled kernels from one run to the next |
//! | `shader` | [`Source`]: shaders put together from plain WGSL files |
//! | `profile` | how long each kernel runs |
//! | `counters` | [`Counters`] of what the runtime made |
//! | `ops` | the dense kernels, a `.rs` and a `.wgsl` file each |

mod adapter;
mod buffer;
mod counters;
mod gpu;
mod kernel_cache;
pub mod ops;
mod profile;
mod recorder;
mod shader;

pub use adapter::{Adapter, Matrices, adapters, pick};
pub use buffer::{GpuBuffer, TwinKind};
pub use counters::Counters;
pub use gpu::{Gpu, KernelKey, Variant};
pub use profile::KernelTime;
pub use recorder::{Bind, Record};
pub use shader::{Access, Kernel, Source};

/// Invocations of a workgroup of the kernels that do one thing for each value.
pub const WORKGROUP: u32 = 64;
