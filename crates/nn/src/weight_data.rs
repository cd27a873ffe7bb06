//! Weights of a device behind a [`Weight`].

use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::sync::{Mutex, PoisonError};

use stonechat_compute::DType;
use stonechat_compute::op::Weight;

/// A matrix or values, in the types of a device.
#[derive(Debug)]
pub(crate) enum WeightData<M, V> {
    Matrix(M),
    Values(V),
}

impl<M: Debug + 'static, V: Debug + 'static> WeightData<M, V> {
    /// # Panics
    /// If the weight is no matrix of this device, as [`values`](Self::values) if it is no values.
    pub(crate) fn matrix(weight: &Weight) -> &M {
        match weight.data() {
            Some(Self::Matrix(matrix)) => matrix,
            _ => panic!("expected a matrix of this device, got {weight:?}"),
        }
    }

    pub(crate) fn values(weight: &Weight) -> &V {
        match weight.data() {
            Some(Self::Values(values)) => values,
            _ => panic!("expected values of this device, got {weight:?}"),
        }
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
