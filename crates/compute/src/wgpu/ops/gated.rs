//! Gated activation of a gated MLP.

use super::kernel::{ACTIVATIONS, GpuRows, KernelSpec, OperandWriter};
use super::operand::GpuOutput;
use crate::check_eq;
use crate::kernel_params;
use crate::op::GatedActivation;
use crate::wgpu::{Access, Recorder, WORKGROUP};

pub(super) const SPEC: KernelSpec = KernelSpec {
    operand_writer: OperandWriter::Any,
    ..KernelSpec::new::<GatedParams>(
        "gated",
        &[Access::Read, Access::Read, Access::Write, Access::Write],
        &[ACTIVATIONS, GATED_ACTIVATION, include_str!("gated.wgsl")],
    )
};

/// WGSL of `gated_activation`, for epilogues.
pub const GATED_ACTIVATION: &str = include_str!("gated_activation.wgsl");

kernel_params! {
    struct GatedParams {
        rows: u32,
        cols: u32,
        gate_offset: u32,
        gate_stride: u32,
        up_offset: u32,
        up_stride: u32,
        activation: u32,
        alpha: f32,
        limit: f32,
        /// Whether to write `out`, and format of `out_operand`.
        has_values: u32,
        operand: u32,
    }
}

/// `out[t] = act(gate[t]) * up[t]`, see [`GatedActivation`]. Shapes: all `[T, F]`.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn gated(
    list: &mut Recorder,
    out: GpuOutput<'_>,
    gate: GpuRows<'_>,
    up: GpuRows<'_>,
    activation: GatedActivation,
) {
    let (gate, up) = (gate.checked(), up.checked());
    check_eq!((up.rows, up.cols), (gate.rows, gate.cols), "gated: shape of up");
    out.check("gated", gate.rows, gate.cols);
    let (code, alpha, limit) = activation.code();
    let params = GatedParams {
        rows: gate.rows as u32,
        cols: gate.cols as u32,
        gate_offset: gate.offset as u32,
        gate_stride: gate.stride as u32,
        up_offset: up.offset as u32,
        up_stride: up.stride as u32,
        activation: code,
        alpha,
        limit,
        has_values: u32::from(out.values.is_some()),
        operand: out.code(),
    };
    // Four values of a row per invocation.
    let groups = gate.rows * gate.cols.div_ceil(4 * WORKGROUP as usize);
    let kernel = SPEC.kernel(list.gpu());
    let [values, operand] = out.binds();
    let binds = [gate.buffer.into(), up.buffer.into(), values, operand];
    list.dispatch_linear(&kernel, &params, binds, groups);
}
