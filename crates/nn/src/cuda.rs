//! NVIDIA GPUs through their driver as a device.
//!
//! | file | holds |
//! |---|---|
//! | `cuda/device.rs` | [`Cuda`]: an open GPU |
//! | `cuda/capabilities.rs` | ops and types that there are kernels for |
//! | `cuda/executable.rs` | a compiled program: memory, steps, results |
//! | `cuda/record.rs` | kernels of each op |
//! | `cuda/log_mel.rs` | log-mel spectrograms |
//! | `cuda/group.rs` | tensor parallelism: several GPUs as one device |
//! | `cuda/memory.rs` | memory of a program's values, scratch memory |
//! | `cuda/weights.rs` | weights behind their handles, errors of allocations |

mod capabilities;
mod device;
mod executable;
mod group;
mod log_mel;
mod memory;
mod record;
mod weights;

pub use self::device::Cuda;
pub use self::group::CudaGroup;
