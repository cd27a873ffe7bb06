//! Dtypes, SIMD dispatch, the thread team and the dense kernels that every model runs on.

mod dtype;

pub use dtype::DType;
