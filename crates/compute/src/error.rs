//! What can go wrong for reasons that a caller cannot foresee.

/// An error of this crate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An environment variable holds a value that has no meaning here.
    #[error("environment variable {name}: expected {expected}, got `{got}`")]
    Config {
        /// The variable.
        name: &'static str,
        /// The accepted values.
        expected: String,
        /// The value found.
        got: String,
    },
    /// The operating system refused to start the threads of the team.
    #[error("cannot start {n_threads} worker threads: {reason}")]
    Threads {
        /// How many were asked for.
        n_threads: usize,
        /// What the thread pool said.
        reason: String,
    },
    /// A buffer cannot be allocated.
    #[error("out of memory: {bytes} bytes are not available")]
    OutOfMemory {
        /// Its size.
        bytes: usize,
    },
    /// No GPU can be used.
    #[error("no GPU {}: found {}", index.map_or_else(|| "that is real hardware".to_owned(), |i| format!("with number {i}")), if found.is_empty() { "none" } else { found })]
    NoAdapter {
        /// The adapter that was asked for.
        index: Option<usize>,
        /// The adapters there are.
        found: String,
    },
    /// A GPU has no buffers of this size.
    #[error("a buffer of {bytes} bytes: this GPU has buffers of at most {limit}")]
    BufferTooLarge {
        /// Its size.
        bytes: usize,
        /// The largest that there is.
        limit: usize,
    },
    /// A GPU refused work or is gone.
    #[error("GPU: {message}")]
    Device {
        /// What its driver said.
        message: String,
    },
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
