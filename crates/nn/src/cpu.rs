//! The CPU as a device.
//!
//! | file | holds |
//! |---|---|
//! | `cpu/device.rs` | [`Cpu`]: an instruction set and a thread team |
//! | `cpu/capabilities.rs` | ops and types that fusion may make |
//! | `cpu/executable.rs` | a compiled program: its steps and pages |
//! | `cpu/memory.rs` | slots, pools and ports of a program |
//! | `cpu/node.rs` | resolved ops: one kernel call an op |
//! | `cpu/matmul.rs` | matmuls with weights of any storage |
//! | `cpu/logits.rs` | filter, top-k and log-sum-exp of rows of logits |
//! | `cpu/expert_mlp.rs` | gated MLPs of a mixture of experts, tokens grouped by expert |
//! | `cpu/row_kernels.rs` | products with block formats without panels, or none |
//! | `cpu/weights.rs` | matrices in host memory: loading, repacking, row ranges |
//! | `cpu/host.rs` | threads, profile and time slices of programs |
//! | `cpu/profile.rs` | time per op |
//! | `cpu/time_slices.rs` | time slices of programs on the same threads |

mod capabilities;
mod device;
mod executable;
mod expert_mlp;
mod host;
mod logits;
mod matmul;
mod memory;
#[cfg(not(feature = "row-kernels"))]
mod no_row_kernels;
mod node;
mod profile;
#[cfg(feature = "row-kernels")]
mod row_kernels;
mod time_slices;
mod weights;

pub use self::device::Cpu;
#[cfg(not(feature = "row-kernels"))]
use self::no_row_kernels as row_kernels;
pub use self::weights::Repack;
