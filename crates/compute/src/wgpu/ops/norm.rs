//! Layer norm and RMS norm: one workgroup per row, sums in f32.

use super::kernel::{GpuRows, check_len, kernel_source, with_write_operand4};
use super::operand::GpuOutput;
use crate::check_at_most;
use crate::kernel_params;
use crate::op::NormArgs;
use crate::wgpu::{Access, GpuBuffer, KernelParams, Recorder, Source, Variant};

const ACCESS: &[Access] = &[Access::Read, Access::Read, Access::Read, Access::Write, Access::Write];
/// Invocations of a row.
const WORKGROUP: u32 = 256;
/// Columns in one step of a workgroup: four per invocation.
const STEP_COLS: usize = 4 * WORKGROUP as usize;
/// Maximum columns: an invocation holds its values of 64 steps in registers.
const MAX_COLS: usize = 64 * STEP_COLS;

/// Name and WGSL file of a norm.
type NormKernel = (&'static str, &'static str);
const LAYER_NORM: NormKernel = ("layer_norm", include_str!("layer_norm.wgsl"));
const RMS_NORM: NormKernel = ("rms_norm", include_str!("rms_norm.wgsl"));

/// Shader for rows of at most `steps * STEP_COLS` columns.
fn source((name, file): NormKernel, steps: u32, variant: Variant) -> Source {
    let name = format!("{name}-{steps}-{}", variant.name());
    let source = kernel_source(name, NormParams::LAYOUT, ACCESS, variant, WORKGROUP)
        .constant("STEPS", steps)
        .file(include_str!("norm_params.wgsl"));
    with_write_operand4(source, variant).file(file)
}

pub(super) fn sources(variant: Variant) -> Vec<Source> {
    [LAYER_NORM, RMS_NORM].map(|norm| [1, 2, 4].map(|steps| source(norm, steps, variant))).concat()
}

kernel_params! {
    struct NormParams {
        rows: u32,
        cols: u32,
        offset: u32,
        stride: u32,
        /// Layer norm only.
        has_bias: u32,
        /// RMS norm only: add the result to `out`.
        accumulate: u32,
        /// Whether to write `out`, and format of `out_operand`.
        has_values: u32,
        operand: u32,
        eps: f32,
    }
}

/// Records a norm of the rows of `x`.
#[track_caller]
fn dispatch(
    list: &mut Recorder,
    kernel: NormKernel,
    out: GpuOutput<'_>,
    x: GpuRows<'_>,
    NormArgs { weight, bias, eps }: NormArgs<&GpuBuffer>,
    accumulate: bool,
) {
    let (x, name) = (x.checked(), kernel.0);
    out.check(name, x.rows, x.cols);
    check_len(name, weight, x.cols);
    bias.inspect(|bias| check_len(name, bias, x.cols));
    let params = NormParams {
        rows: x.rows as u32,
        cols: x.cols as u32,
        offset: x.offset as u32,
        stride: x.stride as u32,
        has_bias: u32::from(bias.is_some()),
        accumulate: u32::from(accumulate),
        has_values: u32::from(out.values.is_some()),
        operand: out.code(),
        eps,
    };
    let [values, operand] = out.binds();
    let binds = [x.buffer.into(), weight.into(), bias.into(), values, operand];
    check_at_most!(x.cols, MAX_COLS, "{name}: columns");
    let steps = x.cols.div_ceil(STEP_COLS) as u32;
    let variant = list.gpu().variant();
    let kernel = list.gpu().kernel((name, [steps, 0, 0, 0]), || source(kernel, steps, variant));
    list.dispatch_linear(&kernel, &params, binds, x.rows);
}

/// `out[t] = (x[t] - mean) / sqrt(var + eps) * weight + bias`. Shapes: `x`, `out` = `[T, D]`; `weight`, `bias` = `[D]`.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn layer_norm(
    list: &mut Recorder,
    out: GpuOutput<'_>,
    x: GpuRows<'_>,
    norm: NormArgs<&GpuBuffer>,
) {
    dispatch(list, LAYER_NORM, out, x, norm, false);
}

/// `out[t] = x[t] / sqrt(mean(x[t]²) + eps) * weight`, added to the values of `out` if `accumulate`. Shapes: `x`, `out` =
/// `[T, D]`; `weight` = `[D]`.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn rms_norm(
    list: &mut Recorder,
    out: GpuOutput<'_>,
    x: GpuRows<'_>,
    norm: NormArgs<&GpuBuffer>,
    accumulate: bool,
) {
    dispatch(list, RMS_NORM, out, x, norm, accumulate);
}
