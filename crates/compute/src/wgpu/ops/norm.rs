//! Layer norm and RMS norm: a workgroup a row, sums in f32.

use bytemuck::{Pod, Zeroable};

use super::twin::{self, Twin};
use super::{GpuRows, check_len, start};
use crate::wgpu::{Access, Bind, Gpu, GpuBuffer, Source, Variant};

const ACCESS: &[Access] = &[Access::Read, Access::Read, Access::Read, Access::Write, Access::Write];
const PARAMS: &str = include_str!("norm_params.wgsl");
/// Invocations that share a row.
const ROW: u32 = 256;
/// Most columns: what an invocation can keep.
const MAX_COLS: usize = 64 * 4 * ROW as usize;

/// A norm and its file.
type Norm = (&'static str, &'static str);
const LAYER_NORM: Norm = ("layer_norm", include_str!("layer_norm.wgsl"));
const RMS_NORM: Norm = ("rms_norm", include_str!("rms_norm.wgsl"));

/// For rows of `steps` times four values an invocation.
fn source((name, file): Norm, steps: u32, variant: Variant) -> Source {
    let name = format!("{name}-{steps}-{}", variant.name());
    let source = start(name, ACCESS, variant, ROW).constant("STEPS", steps).file(PARAMS);
    twin::writer(source, variant).file(file)
}

pub(super) fn sources(variant: Variant) -> Vec<Source> {
    [LAYER_NORM, RMS_NORM].map(|norm| [1, 2, 4].map(|steps| source(norm, steps, variant))).concat()
}

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    rows: u32,
    cols: u32,
    offset: u32,
    stride: u32,
    /// Layer norm: whether there is a bias. RMS norm: whether the result is added.
    is_set: u32,
    twin: u32,
    eps: f32,
}

/// Records a norm of the rows of `x`.
fn dispatch(
    gpu: &Gpu,
    norm: Norm,
    out: &GpuBuffer,
    x: GpuRows<'_>,
    (weight, bias): (&GpuBuffer, Option<&GpuBuffer>),
    (is_set, eps): (bool, f32),
) {
    let twin = Twin::wanted(out, x.rows, x.cols);
    let params = Params {
        rows: x.rows as u32,
        cols: x.cols as u32,
        offset: x.offset as u32,
        stride: x.stride as u32,
        is_set: u32::from(is_set),
        twin: Twin::code(twin.as_ref()),
        eps,
    };
    let twin_buffer = twin.as_ref().map(|twin| &twin.buffer);
    let binds =
        [x.buffer.into(), weight.into(), bias.into(), Bind::Buffer(out), twin_buffer.into()];
    assert!(x.cols <= MAX_COLS, "{}: {} columns, at most {MAX_COLS}", norm.0, x.cols);
    let steps = x.cols.div_ceil(4 * ROW as usize) as u32;
    let kernel = gpu.kernel((norm.0, [steps, 0, 0, 0]), || source(norm, steps, gpu.variant()));
    gpu.record(0).dispatch_line(&kernel, &params, binds, x.rows);
    twin.inspect(|twin| twin.written(out, x.rows, x.cols));
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
    dispatch(gpu, LAYER_NORM, out, x, (weight, bias), (bias.is_some(), eps));
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
    dispatch(gpu, RMS_NORM, out, x, (weight, None), (accumulate, eps));
}
