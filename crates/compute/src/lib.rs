//! Dtypes, SIMD dispatch, the thread team and the dense kernels that every model runs on.

mod config;
mod dtype;
mod error;
pub mod simd;

pub use dtype::DType;
pub use error::{Error, Result};
pub use simd::Isa;
