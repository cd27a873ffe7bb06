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
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
