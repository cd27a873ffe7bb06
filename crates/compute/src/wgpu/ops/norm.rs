//! Layer norm and RMS norm: a workgroup a row, sums in f32.

use bytemuck::{Pod, Zeroable};

use super::{GpuRows, Spec, check_len, kernel};
use crate::wgpu::{Access, Bind, Gpu, GpuBuffer};

const ACCESS: &[Access] = &[Access::Read, Access::Read, Access::Read, Access::Write];
const PARAMS: &str = include_str!("norm_params.wgsl");
/// Invocations that share a row.
const ROW: u32 = 256;
pub(super) const LAYER_NORM: Spec =
    ("layer_norm", (ACCESS, ROW), &[PARAMS, include_str!("layer_norm.wgsl")]);
pub(super) const RMS_NORM: Spec =
    ("rms_norm", (ACCESS, ROW), &[PARAMS, include_str!("rms_norm.wgsl")]);

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    rows: u32,
    cols: u32,
    offset: u32,
    stride: u32,
    /// Layer norm: whether there is a bias. RMS norm: whether the result is added.
    is_set: u32,
    eps: f32,
}

fn params(x: GpuRows<'_>, is_set: bool, eps: f32) -> Params {
    Params {
        rows: x.rows as u32,
        cols: x.cols as u32,
        offset: x.offset as u32,
        stride: x.stride as u32,
        is_set: u32::from(is_set),
        eps,
    }
}

/// `out[t] = (x[t] - mean) / sqrt(var + eps) * weight + bias`, `out` packed.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn layer_norm(
    gpu: &Gpu,
    out: &GpuBuffer,
    x: GpuRows<'_>,
    (weight, bias): (&GpuBuffer, Option<&GpuBuffer>),
    eps: f32,
) {
    let x = x.checked();
    check_len("layer_norm", out, x.rows * x.cols);
    check_len("layer_norm", weight, x.cols);
    bias.inspect(|bias| check_len("layer_norm", bias, x.cols));
    let kernel = kernel(gpu, LAYER_NORM.0, LAYER_NORM.1, LAYER_NORM.2);
    let binds = [x.buffer.into(), weight.into(), bias.into(), Bind::Buffer(out)];
    gpu.record(0).dispatch_line(&kernel, &params(x, bias.is_some(), eps), binds, x.rows);
}

/// `out[t] = x[t] / sqrt(mean(x[t]²) + eps) * weight`, added to `out` if `accumulate`; `out` packed.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn rms_norm(
    gpu: &Gpu,
    out: &GpuBuffer,
    x: GpuRows<'_>,
    weight: &GpuBuffer,
    (eps, accumulate): (f32, bool),
) {
    let x = x.checked();
    check_len("rms_norm", out, x.rows * x.cols);
    check_len("rms_norm", weight, x.cols);
    let kernel = kernel(gpu, RMS_NORM.0, RMS_NORM.1, RMS_NORM.2);
    let binds = [x.buffer.into(), weight.into(), Bind::Nothing, Bind::Buffer(out)];
    gpu.record(0).dispatch_line(&kernel, &params(x, accumulate, eps), binds, x.rows);
}
