//! Both products of a gated feed-forward network and the gating in one kernel.

use bytemuck::{Pod, Zeroable};
use stonechat_compute::cpu::GatedActivation;
use stonechat_compute::wgpu::ops::gated::gate_code;
use stonechat_compute::wgpu::ops::{GpuRows, check_len, quantize};
use stonechat_compute::wgpu::{Access, Bind, Gpu, GpuBuffer, TwinKind};

use super::{
    CHUNK, GpuMatrix, Input, MAX_GEMV_ROWS, Normed, Shape, Spec, activations_of, normed_access,
    normed_binds, width,
};

/// Invocations of a workgroup of the pair's kernel: with 512 the last of them run alone, 14.8 instead of 12.3 us
/// for 8960 x 1536 on an H200.
pub(super) const PAIR_WORKGROUP: u32 = 256;
pub(super) const PAIR_SHAPE: Shape = Shape { lanes: 8, rows: 2 };
/// Its rows of each matrix, whose products are quantized as a group.
const PAIR_ROWS: u32 = PAIR_WORKGROUP / 2 / PAIR_SHAPE.lanes * PAIR_SHAPE.rows;
const _: () = assert!(PAIR_ROWS as usize == quantize::GROUP_LEN);

/// Gate, activations, what gate and up give, their gated product, gate again, the product in 8 bits, up twice.
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
/// And the weights of a norm and what it gives.
pub(super) const NORMED_ACCESS: [Access; ACCESS.len() + 2] = normed_access(ACCESS);

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct PairParams {
    w_stride: u32,
    w_blocks: u32,
    chunks: u32,
    rows: u32,
    part_rows: u32,
    n: u32,
    x_offset: u32,
    x_stride: u32,
    gate: u32,
    alpha: f32,
    limit: f32,
    has_codes: u32,
    norm_eps: f32,
}

/// Whether [`gated_product`] can be asked for these matrices and so many rows.
#[must_use]
pub fn is_pair(gpu: &Gpu, gate: &GpuMatrix, up: &GpuMatrix, rows: usize) -> bool {
    let alike = gate.dtype() == up.dtype() && (gate.n(), gate.k()) == (up.n(), up.k());
    let whole = gate.n().is_multiple_of(PAIR_ROWS as usize);
    let seen_at_once =
        gate.parts.len() == 1 && up.parts.len() == 1 && gpu.max_buffers() >= ACCESS.len();
    alike && whole && seen_at_once && gate.format.has_codes && (1..=MAX_GEMV_ROWS).contains(&rows)
}

/// What [`gated_product`] writes, each packed `[T, N]`.
#[derive(Debug, Clone, Copy)]
pub struct GatedOutput<'a> {
    /// `x · gate`.
    pub gate: &'a GpuBuffer,
    /// `x · up`.
    pub up: &'a GpuBuffer,
    /// The gated product of both.
    pub out: &'a GpuBuffer,
}

/// Both products of a gated feed-forward network and the gating in one: `out[t] = act(gate[t]) * up[t]`. Where `x`
/// is still to be made of what is normed, it is afterwards.
///
/// # Panics
/// If the shapes do not fit or the matrices are no [pair](is_pair).
#[track_caller]
pub fn gated_product(
    gpu: &Gpu,
    to: GatedOutput<'_>,
    (x, normed): (GpuRows<'_>, Option<Normed<'_>>),
    [gate, up]: [&GpuMatrix; 2],
    activation: GatedActivation,
) {
    let x = x.checked();
    assert!(is_pair(gpu, gate, up, x.rows), "gated product: no pair of matrices");
    assert_eq!(x.cols, gate.k(), "gated product: columns of x");
    let n = gate.n();
    for out in [to.gate, to.up, to.out] {
        check_len("gated product", out, x.rows * n);
    }
    let groups = n.div_ceil(PAIR_ROWS as usize);
    let mut input = Input::new(x, normed);
    let normed = input.joined(gpu, gate, (groups, ACCESS.len()), &[to.gate, to.up, to.out]);
    let Some(x8) = activations_of(gpu, gate, x, normed) else { return };
    let width = width(x.rows);
    let codes = quantize::wanted(to.out, x.rows, n);
    let spec = Spec::new(gpu, gate.format, width, PAIR_SHAPE);
    let spec = Spec { workgroup: PAIR_WORKGROUP, ..spec }.normed(normed);
    let (code, alpha, limit) = gate_code(activation);
    let params = PairParams {
        w_stride: gate.stride() as u32,
        w_blocks: gate.n_blocks() as u32,
        chunks: (gate.padded_k() / CHUNK) as u32,
        rows: x.rows as u32,
        part_rows: n as u32,
        n: n as u32,
        x_offset: x8.offset as u32,
        x_stride: x8.stride as u32,
        gate: code,
        alpha,
        limit,
        has_codes: u32::from(codes.is_some()),
        norm_eps: normed.map_or(0.0, |normed| normed.eps),
    };
    let binds = [
        Bind::Buffer(&gate.parts[0].buffer),
        Bind::Buffer(&x8.buffer),
        Bind::Buffer(to.gate),
        Bind::Buffer(to.up),
        Bind::Buffer(to.out),
        Bind::Buffer(&gate.parts[0].buffer),
        codes.as_ref().into(),
        Bind::Buffer(&up.parts[0].buffer),
        Bind::Buffer(&up.parts[0].buffer),
    ];
    let kernel = spec.pair_kernel(gpu);
    if let Some(normed) = normed {
        let binds = normed_binds::<{ NORMED_ACCESS.len() }>(&binds, normed, x.buffer);
        gpu.record(0).dispatch_line(&kernel, &params, binds, groups);
    } else {
        gpu.record(0).dispatch_line(&kernel, &params, binds, groups);
    }
    if codes.is_some() {
        to.out.set_twin(TwinKind::Codes, [x.rows, n]);
    }
}
