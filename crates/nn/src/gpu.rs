//! Errors of allocations and counts of conversions of the GPU backends.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use stonechat_compute::DType;

use crate::Error;

/// Error of an allocation by the device of this name.
pub(crate) fn allocation_error(error: stonechat_compute::Error, backend: &'static str) -> Error {
    match error {
        stonechat_compute::Error::OutOfMemory { bytes } => Error::OutOfMemory { bytes, backend },
        other => other.into(),
    }
}

/// Number of matrices of each type that a GPU stores as f16, for lack of a kernel.
#[derive(Debug, Default)]
pub(crate) struct Conversions(Mutex<BTreeMap<&'static str, usize>>);

impl Conversions {
    /// Counts a matrix, if it is stored in another type.
    pub(crate) fn count(&self, dtype: DType, stored: DType) {
        if dtype != stored {
            let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            *counts.entry(dtype.name()).or_default() += 1;
        }
    }
}

/// `, N matrices of TYPE as f16` for each type.
impl fmt::Display for Conversions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.iter().try_for_each(|(dtype, n)| write!(f, ", {n} matrices of {dtype} as f16"))
    }
}
