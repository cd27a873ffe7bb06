//! Weights of a device behind a [`Weight`].

use std::fmt::Debug;

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
