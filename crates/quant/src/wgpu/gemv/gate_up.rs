//! GEMV with the gate and up matrices of a gated MLP, and the gated activation, in one kernel.

use stonechat_compute::cpu::GatedActivation;
use stonechat_compute::kernel_params;
use stonechat_compute::wgpu::ops::gated::gated_code;
use stonechat_compute::wgpu::ops::{GpuRows, check_len, q8_copy};
use stonechat_compute::wgpu::{Access, Bind, CopyFormat, Gpu, GpuBuffer};

use super::{
    CHUNK, GemvSpec, GpuMatrix, InputNorm, MAX_GEMV_ROWS, MatmulInput, Shape, access_with_norm,
    binds_with_norm, fused_or_prepared, row_bucket,
};

/// Invocations in a workgroup: half for gate, half for up. More would leave the last workgroups to run alone.
pub(super) const GATE_UP_WORKGROUP: u32 = 256;
pub(super) const GATE_UP_SHAPE: Shape = Shape { lanes: 8, rows: 2 };
/// Rows of each matrix a workgroup: a q8 group of outputs.
const GATE_UP_ROWS: u32 = GATE_UP_WORKGROUP / 2 / GATE_UP_SHAPE.lanes * GATE_UP_SHAPE.rows;
const _: () = assert!(GATE_UP_ROWS as usize == q8_copy::GROUP_LEN);

/// Gate matrix, activations, outputs of gate and up, gated output, gate matrix again, q8 copy of the gated output, up
/// matrix twice.
pub(super) const ACCESS: &[Access] = &[
    Access::Read,
    Access::Read,
    Access::Write,
    Access::Write,
    Access::Write,
    Access::Read,
    Access::Write,
    Access::Read,
    Access::Read,
];
/// [`ACCESS`] with the weight and the output of a fused norm.
pub(super) const ACCESS_WITH_NORM: [Access; ACCESS.len() + 2] = access_with_norm(ACCESS);

kernel_params! {
    pub(super) struct GateUpParams {
        w_stride: u32,
        w_blocks: u32,
        chunks: u32,
        rows: u32,
        slice_rows: u32,
        n: u32,
        x_offset: u32,
        x_stride: u32,
        activation: u32,
        alpha: f32,
        limit: f32,
        has_q8_copy: u32,
        norm_eps: f32,
    }
}

/// Whether [`matmul_gated`] supports the matrices and `rows` rows of activations.
#[must_use]
pub fn can_fuse_gate_up(gpu: &Gpu, gate: &GpuMatrix, up: &GpuMatrix, rows: usize) -> bool {
    let is_alike = gate.dtype() == up.dtype() && (gate.n(), gate.k()) == (up.n(), up.k());
    let is_whole = gate.n().is_multiple_of(GATE_UP_ROWS as usize);
    let is_unsplit = gate.slices.len() == 1 && up.slices.len() == 1;
    let has_bindings = gpu.max_buffers() >= ACCESS.len();
    is_alike
        && is_whole
        && is_unsplit
        && has_bindings
        && gate.format.is_quantized
        && (1..=MAX_GEMV_ROWS).contains(&rows)
}

/// Outputs of [`matmul_gated`], each packed `[T, N]`.
#[derive(Debug, Clone, Copy)]
pub struct GateUpOutput<'a> {
    /// `x · gate`.
    pub gate: &'a GpuBuffer,
    /// `x · up`.
    pub up: &'a GpuBuffer,
    /// `act(x · gate) * (x · up)`.
    pub out: &'a GpuBuffer,
}

/// Gate and up of a gated MLP in one kernel: `out[t] = act(x[t] · gate) * (x[t] · up)`, for up to [`MAX_GEMV_ROWS`] rows. With
/// a norm, `x` is its output and is written, too.
///
/// # Panics
/// If the shapes do not fit or [`can_fuse_gate_up`] is false.
#[track_caller]
pub fn matmul_gated(
    gpu: &Gpu,
    outputs: GateUpOutput<'_>,
    (x, norm): (GpuRows<'_>, Option<InputNorm<'_>>),
    [gate, up]: [&GpuMatrix; 2],
    activation: GatedActivation,
) {
    let x = x.checked();
    assert!(can_fuse_gate_up(gpu, gate, up, x.rows), "gated matmul: unsupported matrices");
    assert_eq!(x.cols, gate.k(), "gated matmul: columns of x");
    let n = gate.n();
    let outs = [outputs.gate, outputs.up, outputs.out];
    for out in outs {
        check_len("gated matmul", out, x.rows * n);
    }
    let groups = n.div_ceil(GATE_UP_ROWS as usize);
    let mut input = MatmulInput::new(x, norm);
    let norm = input.fuse_norm(gpu, gate, (groups, ACCESS.len()), &outs);
    let Some(activations) = fused_or_prepared(gpu, gate, x, norm) else { return };
    let copy = q8_copy::requested(outputs.out, x.rows, n);
    let spec = GemvSpec::new(gpu, gate.format, row_bucket(x.rows), GATE_UP_SHAPE);
    let spec = GemvSpec { workgroup: GATE_UP_WORKGROUP, ..spec }.with_norm(norm);
    let (code, alpha, limit) = gated_code(activation);
    let params = GateUpParams {
        w_stride: gate.stride() as u32,
        w_blocks: gate.n_blocks() as u32,
        chunks: (gate.padded_k() / CHUNK) as u32,
        rows: x.rows as u32,
        slice_rows: n as u32,
        n: n as u32,
        x_offset: activations.offset as u32,
        x_stride: activations.stride as u32,
        activation: code,
        alpha,
        limit,
        has_q8_copy: u32::from(copy.is_some()),
        norm_eps: norm.map_or(0.0, |norm| norm.eps),
    };
    let binds = [
        Bind::Buffer(&gate.slices[0].buffer),
        Bind::Buffer(&activations.buffer),
        Bind::Buffer(outputs.gate),
        Bind::Buffer(outputs.up),
        Bind::Buffer(outputs.out),
        Bind::Buffer(&gate.slices[0].buffer),
        copy.as_ref().into(),
        Bind::Buffer(&up.slices[0].buffer),
        Bind::Buffer(&up.slices[0].buffer),
    ];
    let kernel = spec.gate_up_kernel(gpu);
    if let Some(norm) = norm {
        let binds = binds_with_norm::<{ ACCESS_WITH_NORM.len() }>(&binds, norm, x.buffer);
        gpu.record(0).dispatch_linear(&kernel, &params, binds, groups);
    } else {
        gpu.record(0).dispatch_linear(&kernel, &params, binds, groups);
    }
    if copy.is_some() {
        outputs.out.mark_copy(CopyFormat::Q8, [x.rows, n]);
    }
}
