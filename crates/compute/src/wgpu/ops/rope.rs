//! Norm and rotation of heads, in place: a workgroup a head.

use bytemuck::{Pod, Zeroable};

use super::{GpuRows, Spec, check_len};
use crate::cpu::RopePairs;
use crate::wgpu::{Access, Bind, Gpu, GpuBuffer, WORKGROUP};

/// Widest head.
pub const MAX_HEAD_DIM: usize = 1024;

pub(super) const SPEC: Spec = Spec {
    name: "rope",
    access: &[Access::Write, Access::Read, Access::Read],
    workgroup: WORKGROUP,
    files: &[include_str!("rope.wgsl")],
    quantizes: false,
};

/// What [`rope`] does to each head.
#[derive(Debug, Clone, Copy)]
pub struct Rope<'a> {
    /// Width of a head `C`.
    pub head_dim: usize,
    /// RMS norm before the rotation: weight `[C]` and epsilon.
    pub norm: Option<(&'a GpuBuffer, f32)>,
    /// Cosines and sines `[T, R]`, `R`, and which channels form a pair.
    pub rotation: Option<(&'a GpuBuffer, usize, RopePairs)>,
}

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    rows: u32,
    n_heads: u32,
    head_dim: u32,
    offset: u32,
    stride: u32,
    n_rot: u32,
    is_adjacent: u32,
    has_norm: u32,
    eps: f32,
}

/// Norms and rotates the heads of `x`, `[T, H*C]`.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn rope(gpu: &Gpu, x: GpuRows<'_>, args: Rope<'_>) {
    let x = x.checked();
    let Rope { head_dim, norm, rotation } = args;
    assert!(head_dim <= MAX_HEAD_DIM && x.cols.is_multiple_of(head_dim), "rope: heads");
    norm.inspect(|(weight, _)| check_len("rope", weight, head_dim));
    let n_rot = rotation.map_or(0, |(_, n_rot, _)| n_rot);
    assert!(n_rot <= head_dim, "rope: {n_rot} of {head_dim} channels");
    rotation.inspect(|(cos_sin, ..)| check_len("rope", cos_sin, x.rows * n_rot));
    let params = Params {
        rows: x.rows as u32,
        n_heads: (x.cols / head_dim) as u32,
        head_dim: head_dim as u32,
        offset: x.offset as u32,
        stride: x.stride as u32,
        n_rot: n_rot as u32,
        is_adjacent: u32::from(matches!(rotation, Some((.., RopePairs::Adjacent)))),
        has_norm: u32::from(norm.is_some()),
        eps: norm.map_or(0.0, |(_, eps)| eps),
    };
    let binds = [
        Bind::Buffer(x.buffer),
        norm.map(|(weight, _)| weight).into(),
        rotation.map(|(cos_sin, ..)| cos_sin).into(),
    ];
    let kernel = SPEC.kernel(gpu);
    gpu.record(0).dispatch_line(&kernel, &params, binds, x.rows * x.cols / head_dim);
}
