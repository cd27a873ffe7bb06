//! Errors of dtypes and lengths that come from files.

use stonechat_compute::DType;

/// An error of this crate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The type has no float values, or no kernel for this operation.
    #[error("{op}: expected one of {expected}, got {dtype}")]
    Unsupported {
        /// Operation.
        op: &'static str,
        /// The types it works on.
        expected: &'static str,
        /// The type given.
        dtype: DType,
    },
    /// The type packs well only with an importance matrix.
    #[error(
        "cannot quantize to {dtype}: it needs an importance matrix, which is not supported; \
         the smallest types that need none are tq1_0 (ternary models), q2_k and q3_k"
    )]
    NeedsImportance {
        /// The type given.
        dtype: DType,
    },
    /// A row does not divide into blocks.
    #[error("{dtype} rows: expected a multiple of {block_len} elements, got {k}")]
    RowLen {
        /// The type.
        dtype: DType,
        /// Elements in a block.
        block_len: usize,
        /// Elements in the row.
        k: usize,
    },
    /// A buffer has the wrong length.
    #[error("{dtype} {what}: expected {expected}, got {got}")]
    Len {
        /// The type.
        dtype: DType,
        /// Buffer and its unit.
        what: &'static str,
        /// The length needed.
        expected: usize,
        /// The length found.
        got: usize,
    },
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
