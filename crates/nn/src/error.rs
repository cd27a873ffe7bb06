//! Errors of devices, caches and sampling.

use stonechat_compute::DType;

/// Errors of devices, memory, files and options.
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
    #[error("saved keys and values: expected {expected} bytes a page, got {got}")]
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
    /// A sampling option is out of its range.
    #[error("sampling option `{option}`: expected {expected}, got {got}")]
    SamplingOption {
        /// The field of `SamplingOptions`.
        option: &'static str,
        /// The range in words.
        expected: &'static str,
        /// The value given.
        got: f32,
    },
    /// No sampler has this name or letter.
    #[error("unknown sampler `{name}`: expected one of {known}")]
    UnknownSampler {
        /// The name given.
        name: String,
        /// All names, with their letters.
        known: String,
    },
    /// A grammar cannot be used, or a token goes against one.
    #[error("{kind}: {message}")]
    Grammar {
        /// The grammar's language, or the operation that failed.
        kind: &'static str,
        /// Cause, in words.
        message: String,
    },
}
