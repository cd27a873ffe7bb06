//! Statistics of loading weights.

use std::ops::Add;
use std::time::Duration;

/// Bytes and time of loading weights and compiling kernels. Times include page faults of the mapped file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LoadStats {
    /// Bytes repacked into panels.
    pub repacked_bytes: u64,
    /// Time spent on repacking.
    pub repack_time: Duration,
    /// Bytes copied unchanged, by the backend or by the model that joined tensors.
    pub copied_bytes: u64,
    /// Time the backend spent on copying.
    pub copy_time: Duration,
    /// Kernels compiled.
    pub compiled_kernels: u64,
    /// Time spent on compiling.
    pub compile_time: Duration,
    /// Bytes used from the memory-mapped file.
    pub mapped_bytes: u64,
}

impl Add for LoadStats {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            repacked_bytes: self.repacked_bytes + other.repacked_bytes,
            repack_time: self.repack_time + other.repack_time,
            copied_bytes: self.copied_bytes + other.copied_bytes,
            copy_time: self.copy_time + other.copy_time,
            mapped_bytes: self.mapped_bytes + other.mapped_bytes,
            compiled_kernels: self.compiled_kernels + other.compiled_kernels,
            compile_time: self.compile_time + other.compile_time,
        }
    }
}
