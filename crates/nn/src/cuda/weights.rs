//! Weights on an NVIDIA GPU behind their handles, and errors of allocations.

use stonechat_compute::cuda::Buffer;
use stonechat_compute::op::Weight;
use stonechat_quant::cuda::CudaMatrix;

use crate::weight_data::WeightData;
use crate::{Error, gpu};

pub(super) const NAME: &str = "cuda";

pub(super) type CudaWeight = WeightData<CudaMatrix, Buffer>;

pub(super) fn matrix(weight: &Weight) -> &CudaMatrix {
    CudaWeight::matrix(weight)
}

/// Address of f32 values.
pub(super) fn values(weight: &Weight) -> u64 {
    CudaWeight::values(weight).address()
}

/// Address of f32 values, 0 without them.
pub(super) fn optional(weight: Option<&Weight>) -> u64 {
    weight.map_or(0, values)
}

pub(super) fn allocation_error(error: stonechat_compute::Error) -> Error {
    gpu::allocation_error(error, NAME)
}
