//! GPUs through wgpu as a device.
//!
//! | file | holds |
//! |---|---|
//! | `wgpu/device.rs` | [`Wgpu`]: an open GPU |
//! | `wgpu/capabilities.rs` | ops and types that there are kernels for |
//! | `wgpu/executable.rs` | a compiled program: slots, pools, the kernels of each op |
//! | `wgpu/weights.rs` | weights behind their handles, errors of allocations |

mod capabilities;
mod device;
mod executable;
mod weights;

pub use self::device::Wgpu;
