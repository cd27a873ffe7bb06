//! GPUs through wgpu: Vulkan, Metal, DirectX 12 and WebGPU.
//!
//! Ops append dispatches to a list, which is submitted once per step. What changes from step to step is in one buffer, so that
//! a list is recorded once for steps of the same shape. After warm-up a step creates no buffer and no bind group.
//!
//! | file | holds |
//! |---|---|
//! | `adapter` | [`Adapter`]: capabilities of the GPUs of this machine, and [`pick`] |
//! | `gpu` | [`Gpu`]: an open device with its kernels |
//! | `list` | [`CommandList`]: recorded dispatches; [`Recorder`]: what lists share |
//! | `buffer`, `memory` | [`GpuBuffer`], bytes in use |
//! | `submit` | submission, uploads, readback |
//! | `kernel_cache` | compiled pipelines saved between runs |
//! | `shader` | [`Source`]: shaders composed from WGSL files; [`Dialect`] of a compiler |
//! | `params` | [`KernelParams`]: layout of uniform parameters |
//! | `counters` | [`Counters`] of buffers, pipelines, dispatches, submissions |
//! | `ops` | dense kernels, a `.rs` and a `.wgsl` file each |

mod adapter;
mod buffer;
mod counters;
mod gpu;
mod kernel_cache;
mod list;
mod memory;
pub mod ops;
mod params;
mod shader;
mod submit;

#[cfg(target_arch = "wasm32")]
pub use adapter::set_browser_subgroups;
pub use adapter::{Adapter, CoopMatrices, adapters, pick};
pub use buffer::GpuBuffer;
pub use counters::Counters;
pub use gpu::{Gpu, KernelKey, Variant};
pub use list::{Bind, CommandList, Recorder};
pub use params::{KernelParams, ParamField, ParamLayout};
pub use shader::{Access, Dialect, Kernel, Source};
pub use submit::{CopyRange, HostCopies};

/// Invocations in a workgroup of elementwise kernels.
pub const WORKGROUP: u32 = 64;
