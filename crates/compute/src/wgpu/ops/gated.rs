//! Gated activations.

use bytemuck::{Pod, Zeroable};

use super::quantize::wanted;
use super::{ACTIVATIONS, GpuRows, Spec, check_len};
use crate::cpu::GatedActivation;
use crate::wgpu::{Access, Bind, Gpu, GpuBuffer, WORKGROUP};

pub(super) const SPEC: Spec = Spec {
    name: "gated",
    access: &[Access::Read, Access::Read, Access::Write, Access::Write],
    workgroup: WORKGROUP,
    files: &[ACTIVATIONS, GATES, include_str!("gated.wgsl")],
    quantizes: true,
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
    has_codes: u32,
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
    let codes = wanted(out, gate.rows, gate.cols);
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
        has_codes: u32::from(codes.is_some()),
    };
    // An invocation takes four values of a row.
    let groups = gate.rows * gate.cols.div_ceil(4 * WORKGROUP as usize);
    let kernel = SPEC.kernel(gpu);
    let binds = [gate.buffer.into(), up.buffer.into(), Bind::Buffer(out), codes.as_ref().into()];
    gpu.record(0).dispatch_line(&kernel, &params, binds, groups);
    if codes.is_some() {
        out.set_twin(Some([gate.rows, gate.cols]));
    }
}
