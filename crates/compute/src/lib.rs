//! Dtypes, SIMD dispatch, the thread team and the dense kernels that every model runs on.

mod aligned;
mod config;
pub mod cpu;
mod dtype;
mod error;
mod parts;
mod scratch;
mod shared_bytes;
pub mod simd;
mod threads;
#[cfg(feature = "wgpu")]
pub mod wgpu;

pub use aligned::AlignedVec;
pub use dtype::DType;
pub use error::{Error, Result};
pub use parts::Parts;
pub use scratch::with_scratch;
pub use shared_bytes::{ByteOwner, SharedBytes};
pub use simd::Isa;
pub use threads::ThreadTeam;

/// The processor as a compute device: which instructions to use and which threads.
#[derive(Debug, Clone)]
pub struct Cpu {
    /// Tier of instructions.
    pub isa: Isa,
    /// Threads that share the work of an op.
    pub threads: ThreadTeam,
}

impl Cpu {
    /// The best tier (see [`Isa::best`]) and `n_threads` threads, 0 for one a physical core.
    ///
    /// # Errors
    /// If `STONECHAT_ISA` names no tier or the threads cannot be started.
    pub fn new(n_threads: usize) -> Result<Self> {
        Ok(Self { isa: Isa::best()?, threads: ThreadTeam::new(n_threads)? })
    }
}
