//! NVIDIA GPUs through their driver, which is loaded when the first device is opened.
//!
//! Kernels are compiled ahead: [`Archive`]s of machine code for each architecture are part of the program, see
//! `cargo xtask ptx`. A step is a [`CommandList`] of launches, which becomes a CUDA graph when it runs again.
//!
//! | file | holds |
//! |---|---|
//! | `limits` | [`Limits`] of devices by compute capability |
//! | `device` | [`CudaDevice`]: the GPUs of this machine; the driver's version |
//! | `gpu` | [`Gpu`]: an open device, its stream and kernels |
//! | `code` | threads and shared memory of compiled kernels |
//! | `archive` | [`Archive`]: compiled kernels by architecture |
//! | `buffer` | [`Buffer`]: device memory; pinned host memory |
//! | `list` | [`CommandList`]: launches of a step, its graph |
//! | `communicator` | [`Communicator`]: memory of the ranks of a group, peer access |
//! | `event` | points of the stream, their times |
//! | `transfer` | inputs of steps, results, uploads of weights |
//! | `counters` | [`Counters`] of allocations, launches, transfers |
//! | `call` | results of the driver's functions |
//! | `ops` | kernels, a `.rs` and a `.cu` file each |

mod archive;
mod buffer;
mod call;
mod code;
mod communicator;
mod counters;
mod device;
mod event;
mod gpu;
mod limits;
mod list;
pub mod ops;
mod tensor_map;
mod transfer;

pub use archive::{Archive, Reach, Target};
pub use buffer::Buffer;
pub use communicator::{Communicator, MAX_RANKS, Rank};
pub use counters::Counters;
pub use device::{CudaDevice, Driver, devices};
pub use gpu::{Gpu, Kernel};
pub use limits::Limits;
pub use list::{CommandList, Launch};
pub use tensor_map::TensorMap;
pub use transfer::{CopyRange, HostCopies, HostWrites, StepBuffer, Uploads};

/// Kernels of this crate.
pub static ARCHIVE: Archive = crate::cuda_archive!();
