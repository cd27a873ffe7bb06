//! Errors of devices and caches.

use stonechat_compute::DType;

/// Errors of devices, memory and files.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device could not be set up.
    #[error(transparent)]
    Compute(#[from] stonechat_compute::Error),
    /// A weight is stored in a type that the device has no kernel for.
    #[error("tensor `{name}`: the {backend} backend cannot use weights of type {dtype}")]
    UnsupportedWeight {
        /// The tensor's name in its file.
        name: String,
        /// The stored type.
        dtype: DType,
        /// Name of the device.
        backend: &'static str,
    },
    /// A tensor's size does not match its declared shape.
    #[error("tensor `{name}`: expected {expected} bytes of {dtype} for shape {shape:?}, got {got}")]
    WeightSize {
        /// The tensor's name in its file.
        name: String,
        /// The stored type.
        dtype: DType,
        /// Rows, columns.
        shape: [usize; 2],
        /// Bytes for this shape.
        expected: usize,
        /// Bytes present.
        got: usize,
    },
    /// Saved keys and values do not fit the pool.
    #[error("saved keys and values: expected {expected} bytes per page, got {got}")]
    KvPage {
        /// Bytes of a page in every layer.
        expected: usize,
        /// Bytes given.
        got: usize,
    },
    /// A device has no kernel of an op for these shapes.
    #[error("the {backend} backend cannot run {op}: {reason}")]
    Unsupported {
        /// Name of the device.
        backend: &'static str,
        /// The op.
        op: &'static str,
        /// Shape given and limit, in words.
        reason: String,
    },
    /// A device buffer could not be made.
    #[error("cannot allocate {bytes} bytes on {backend}")]
    OutOfMemory {
        /// Size of the buffer.
        bytes: usize,
        /// Name of the device.
        backend: &'static str,
    },
}
