//! Gated activations.

use bytemuck::{Pod, Zeroable};

use super::twin::Twin;
use super::{ACTIVATIONS, Beside, GpuRows, Spec, check_len};
use crate::cpu::GatedActivation;
use crate::wgpu::{Access, Bind, Gpu, GpuBuffer, WORKGROUP};

pub(super) const SPEC: Spec = Spec {
    name: "gated",
    access: &[Access::Read, Access::Read, Access::Write, Access::Write],
    workgroup: WORKGROUP,
    files: &[ACTIVATIONS, GATES, include_str!("gated.wgsl")],
    beside: Beside::Twin,
};

/// `gated_by`, which the products of gate and up call.
pub const GATES: &str = include_str!("gates.wgsl");

/// How `gates.wgsl` calls an activation, its slope and its limit.
#[must_use]
pub fn gate_code(activation: GatedActivation) -> (u32, f32, f32) {
    match activation {
        GatedActivation::Silu => (0, 0.0, 0.0),
        GatedActivation::GeluTanh => (1, 0.0, 0.0),
        GatedActivation::ClampedSwiglu { alpha, limit } => (2, alpha, limit),
    }
}

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    rows: u32,
    cols: u32,
    gate_offset: u32,
    gate_stride: u32,
    up_offset: u32,
    up_stride: u32,
    activation: u32,
    alpha: f32,
    limit: f32,
    twin: u32,
}

/// `out[t] = act(gate[t]) * up[t]`, `out` packed; see [`GatedActivation`].
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn gated(
    gpu: &Gpu,
    out: &GpuBuffer,
    gate: GpuRows<'_>,
    up: GpuRows<'_>,
    activation: GatedActivation,
) {
    let (gate, up) = (gate.checked(), up.checked());
    assert_eq!((gate.rows, gate.cols), (up.rows, up.cols), "gated: shape of gate and up");
    check_len("gated", out, gate.rows * gate.cols);
    let (code, alpha, limit) = gate_code(activation);
    let twin = Twin::wanted(out, gate.rows, gate.cols);
    let params = Params {
        rows: gate.rows as u32,
        cols: gate.cols as u32,
        gate_offset: gate.offset as u32,
        gate_stride: gate.stride as u32,
        up_offset: up.offset as u32,
        up_stride: up.stride as u32,
        activation: code,
        alpha,
        limit,
        twin: Twin::code(twin.as_ref()),
    };
    // An invocation takes four values of a row.
    let groups = gate.rows * gate.cols.div_ceil(4 * WORKGROUP as usize);
    let kernel = SPEC.kernel(gpu);
    let twin_buffer = twin.as_ref().map(|twin| &twin.buffer);
    let binds = [gate.buffer.into(), up.buffer.into(), Bind::Buffer(out), twin_buffer.into()];
    gpu.record(0).dispatch_line(&kernel, &params, binds, groups);
    twin.inspect(|twin| twin.written(out, gate.rows, gate.cols));
}
