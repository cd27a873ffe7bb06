//! Gated activations.

use bytemuck::{Pod, Zeroable};

use super::{ACTIVATIONS, GpuRows, Spec, check_len, kernel};
use crate::cpu::GatedActivation;
use crate::wgpu::{Access, Bind, Gpu, GpuBuffer, WORKGROUP};

pub(super) const SPEC: Spec = (
    "gated",
    (&[Access::Read, Access::Read, Access::Write], WORKGROUP),
    &[ACTIVATIONS, include_str!("gated.wgsl")],
);

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
    let (code, alpha, limit) = match activation {
        GatedActivation::Silu => (0, 0.0, 0.0),
        GatedActivation::GeluTanh => (1, 0.0, 0.0),
        GatedActivation::ClampedSwiglu { alpha, limit } => (2, alpha, limit),
    };
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
    };
    let groups = (gate.rows * gate.cols).div_ceil(WORKGROUP as usize);
    let kernel = kernel(gpu, SPEC.0, SPEC.1, SPEC.2);
    let binds = [gate.buffer.into(), up.buffer.into(), Bind::Buffer(out)];
    gpu.record(0).dispatch_line(&kernel, &params, binds, groups);
}
