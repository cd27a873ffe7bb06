//! Errors that a caller cannot foresee.

/// Error of this crate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An environment variable has an invalid value.
    #[error("environment variable {name}: expected {expected}, got `{got}`")]
    Config {
        /// Name of the variable.
        name: &'static str,
        /// Accepted values.
        expected: String,
        /// Value found.
        got: String,
    },
    /// The operating system refused to start the threads of the team.
    #[error("cannot start {n_threads} worker threads: {reason}")]
    Threads {
        /// Size of the team.
        n_threads: usize,
        /// Message of the thread pool.
        reason: String,
    },
    /// The system has no memory for a buffer.
    #[error("out of memory: {bytes} bytes are not available")]
    OutOfMemory {
        /// Size of the buffer.
        bytes: usize,
    },
    /// Adapter index out of range, or no hardware adapter.
    #[error("no GPU {}: found {}", index.map_or_else(|| "that is real hardware".to_owned(), |i| format!("with number {i}")), if found.is_empty() { "none" } else { found })]
    NoAdapter {
        /// Index of the adapter; `None` for any that is hardware.
        index: Option<usize>,
        /// Adapters of this machine.
        found: String,
    },
    /// No CUDA device, or a driver that is too old.
    #[error("no CUDA device: {reason}")]
    NoCuda {
        /// Missing or unusable driver or device, in words.
        reason: String,
    },
    /// Two GPUs of a group cannot access each other's memory.
    #[error("{from} cannot access the memory of {to}: {reason}")]
    NoPeerAccess {
        /// The GPU that would access it.
        from: String,
        /// Owner of the memory.
        to: String,
        /// Cause, in words.
        reason: String,
    },
    /// A buffer exceeds the limit of the GPU.
    #[error("a buffer of {bytes} bytes: this GPU has buffers of at most {limit}")]
    BufferTooLarge {
        /// Size of the buffer.
        bytes: usize,
        /// Maximum size.
        limit: usize,
    },
    /// A GPU rejected work or is lost.
    #[error("GPU: {message}")]
    Device {
        /// Message of its driver.
        message: String,
    },
}

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
