//! Op vocabulary, dtypes, SIMD dispatch, thread team, paged KV cache and dense f32 kernels; GPU kernels with the features
//! `wgpu` and `cuda`.

mod aligned;
mod check;
mod config;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod dtype;
mod error;
mod huge_pages;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod kernel_times;
mod log_mel;
pub mod op;
mod parts;
mod scratch;
mod shared_bytes;
pub mod simd;
mod threads;
#[cfg(feature = "wgpu")]
pub mod wgpu;

pub use aligned::{AlignedBytes, AlignedVec};
pub use dtype::DType;
pub use error::{Error, Result};
pub use huge_pages::huge_page_vec;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
pub use kernel_times::KernelTime;
pub use log_mel::{LogMelTables, MelFilter};
pub use parts::Parts;
pub use scratch::with_scratch;
pub use shared_bytes::{ByteOwner, SharedBytes};
pub use simd::Isa;
#[cfg(all(target_arch = "wasm32", target_feature = "atomics"))]
pub use threads::thread_main;
pub use threads::{ThreadTeam, usable_cores};

/// CPU device: instruction-set tier and thread team.
#[derive(Debug, Clone)]
pub struct Cpu {
    /// Instruction-set tier.
    pub isa: Isa,
    /// Threads that run the tasks of an op.
    pub threads: ThreadTeam,
}

impl Cpu {
    /// The best tier ([`Isa::best`]) and `n_threads` threads; 0 means one per physical core.
    ///
    /// # Errors
    /// [`Error::Config`] if `STONECHAT_ISA` names no tier, [`Error::Threads`] if the threads cannot be started.
    pub fn new(n_threads: usize) -> Result<Self> {
        Ok(Self { isa: Isa::best()?, threads: ThreadTeam::new(n_threads)? })
    }
}
