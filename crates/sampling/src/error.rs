//! Errors of sampling options and grammars.

/// Error of sampling.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
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
    /// Unknown name or letter of a sampler.
    #[error("unknown sampler `{name}`: expected one of {known}")]
    UnknownSampler {
        /// The name given.
        name: String,
        /// All names, with their letters.
        known: String,
    },
    /// A grammar cannot be compiled, or a token violates it.
    #[error("{kind}: {message}")]
    Grammar {
        /// The grammar's language, or the operation that failed.
        kind: &'static str,
        /// Cause, in words.
        message: String,
    },
}
