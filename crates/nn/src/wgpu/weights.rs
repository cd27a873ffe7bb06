//! Weights on a GPU behind their handles, and errors of allocations.

use stonechat_compute::op::Weight;
use stonechat_compute::wgpu::GpuBuffer;
use stonechat_quant::wgpu::GpuMatrix;

use crate::weight_data::WeightData;
use crate::{Error, gpu};

pub(super) const NAME: &str = "wgpu";

/// Weights on a GPU.
pub(super) type GpuWeight = WeightData<GpuMatrix, GpuBuffer>;

pub(super) fn matrix(weight: &Weight) -> &GpuMatrix {
    GpuWeight::matrix(weight)
}

pub(super) fn values(weight: &Weight) -> &GpuBuffer {
    GpuWeight::values(weight)
}

pub(super) fn allocation_error(error: stonechat_compute::Error) -> Error {
    gpu::allocation_error(error, NAME)
}
