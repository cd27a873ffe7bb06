//! GPUs through wgpu: Vulkan, Metal, DirectX 12 and WebGPU.
//!
//! Ops append dispatches to a recording, which is submitted when a result is read: a forward pass is one
//! submission. After warm-up a pass creates no buffer and no bind group.
//!
//! | file | holds |
//! |---|---|
//! | `adapter` | [`Adapter`]: capabilities of the GPUs of this machine, and [`pick`] |
//! | `gpu` | [`Gpu`]: an open device with its kernels, scratch memory and recording |
//! | `recorder` | recording of dispatches and its submission |
//! | `buffer` | [`GpuBuffer`] with its cached f16 and q8 copies, readback |
//! | `kernel_cache` | compiled pipelines saved between runs |
//! | `shader` | [`Source`]: shaders composed from WGSL files |
//! | `params` | [`KernelParams`]: layout of uniform parameters |
//! | `profile` | run time of each kernel by timestamp queries |
//! | `counters` | [`Counters`] of buffers, pipelines, dispatches, submissions |
//! | `ops` | dense kernels, a `.rs` and a `.wgsl` file each |

mod adapter;
mod buffer;
mod counters;
mod gpu;
mod kernel_cache;
pub mod ops;
mod params;
mod profile;
mod recorder;
mod shader;

pub use adapter::{Adapter, CoopMatrices, adapters, pick};
pub use buffer::{CopyFormat, GpuBuffer, ReadRange};
pub use counters::Counters;
pub use gpu::{Gpu, KernelKey, Variant};
pub use params::{KernelParams, ParamField, ParamLayout};
pub use profile::KernelTime;
pub use recorder::{Bind, Record};
pub use shader::{Access, Kernel, Source};

/// Invocations in a workgroup of elementwise kernels.
pub const WORKGROUP: u32 = 64;
