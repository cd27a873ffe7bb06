//! GEMV with the gate and up matrices of a gated MLP, and the gated activation, in one kernel.

use std::sync::Arc;

use stonechat_compute::op::GatedActivation;
use stonechat_compute::wgpu::ops::gated::GATED_ACTIVATION;
use stonechat_compute::wgpu::ops::operand::{GpuOutput, OperandFormat};
use stonechat_compute::wgpu::ops::{ACTIVATIONS, check_len, q8};
use stonechat_compute::wgpu::{Access, Bind, Gpu, Kernel, KernelParams, Recorder, Source, Variant};
use stonechat_compute::{check_at_most, check_eq, check_multiple, kernel_params};

use super::spec::{GemvKind, GemvSpec, MAX_GEMV_ROWS, Shape, row_bucket, with_reduction};
use crate::wgpu::input_norm::{access_with_norm, binds_with_norm};
use crate::wgpu::matmul_args::{Activations, GpuInput};
use crate::wgpu::matrix::GpuMatrix;
use crate::wgpu::planes::CHUNK;

/// Invocations in a workgroup: half for gate, half for up. More would leave the last workgroups to run alone.
pub(super) const GATE_UP_WORKGROUP: u32 = 256;
pub(super) const GATE_UP_SHAPE: Shape = Shape { lanes: 8, rows: 2 };
/// Rows of each matrix a workgroup: a q8 group of outputs.
pub const GATE_UP_ROWS: usize =
    (GATE_UP_WORKGROUP / 2 / GATE_UP_SHAPE.lanes * GATE_UP_SHAPE.rows) as usize;
const _: () = assert!(GATE_UP_ROWS == q8::GROUP_LEN);

/// Gate matrix, activations, gate matrix again, up matrix twice, output.
pub(super) const ACCESS: &[Access] =
    &[Access::Read, Access::Read, Access::Read, Access::Read, Access::Read, Access::Write];
/// Storage buffers of the kernel.
pub const GATE_UP_BUFFERS: usize = ACCESS.len();
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
        norm_eps: f32,
    }
}

impl GemvSpec {
    pub(super) fn gate_up_source(&self, is_q8: bool, variant: Variant) -> Source {
        let access = if self.norm_k > 0 { &ACCESS_WITH_NORM } else { ACCESS };
        let source = self
            .start(
                if is_q8 { "gemv_gate_up_q8" } else { "gemv_gate_up" },
                GateUpParams::LAYOUT,
                access,
                variant,
            )
            .file(include_str!("../gate_up_bindings.wgsl"))
            .file(ACTIVATIONS)
            .file(GATED_ACTIVATION)
            .file(include_str!("../gemv_gate_up.wgsl"));
        let source = match is_q8 {
            true => {
                q8::with_quantize4(source, variant).file(include_str!("../gate_up_output_q8.wgsl"))
            }
            false => source.file(include_str!("../gate_up_output_f32.wgsl")),
        };
        with_reduction(self.with_multiply(source, access, is_q8), variant)
    }

    fn gate_up_kernel(&self, gpu: &Gpu, is_q8: bool) -> Arc<Kernel> {
        let kind = if is_q8 { GemvKind::GateUpQ8 } else { GemvKind::GateUp };
        gpu.kernel(("gemv", self.key(kind)), || self.gate_up_source(is_q8, gpu.variant()))
    }
}

/// Workgroups of the kernel.
fn n_groups(gate: &GpuMatrix) -> usize {
    gate.n.div_ceil(GATE_UP_ROWS)
}

/// Gate and up of a gated MLP in one kernel: `out[t] = act(x[t] · gate) * (x[t] · up)`, for up to [`MAX_GEMV_ROWS`] rows, in
/// f32 or q8.
///
/// # Panics
/// If the shapes or types do not fit, or a matrix is split.
#[track_caller]
pub fn matmul_gated(
    list: &mut Recorder,
    out: GpuOutput<'_>,
    input: GpuInput<'_>,
    [gate, up]: [&GpuMatrix; 2],
    activation: GatedActivation,
) {
    let (rows, n) = (input.rows, gate.n);
    let type_and_shape = |w: &GpuMatrix| (w.dtype(), w.n, w.k);
    check_eq!(type_and_shape(up), type_and_shape(gate), "gated matmul: type and shape of up");
    check_multiple!(n, GATE_UP_ROWS, "gated matmul: rows of the matrices");
    check_eq!((gate.slices.len(), up.slices.len()), (1, 1), "gated matmul: slices");
    check_at_most!(rows, MAX_GEMV_ROWS, "gated matmul: rows of the operand");
    out.values.inspect(|out| check_len("gated matmul", out, rows * n));
    let x = Activations::new(list, gate, input, Some(OperandFormat::Q8));
    let spec = GemvSpec::new(list.gpu(), gate.format, row_bucket(rows), GATE_UP_SHAPE);
    let spec = GemvSpec { workgroup: GATE_UP_WORKGROUP, ..spec }.with_norm(&x, gate);
    let (code, alpha, limit) = activation.code();
    let params = GateUpParams {
        w_stride: gate.stride() as u32,
        w_blocks: gate.n_blocks() as u32,
        chunks: (gate.padded_k / CHUNK) as u32,
        rows: rows as u32,
        slice_rows: n as u32,
        n: n as u32,
        x_offset: x.offset as u32,
        x_stride: x.stride as u32,
        activation: code,
        alpha,
        limit,
        norm_eps: x.norm.map_or(0.0, |norm| norm.eps),
    };
    let [gate_bind, up_bind] = [gate, up].map(|w| Bind::Buffer(&w.slices[0].buffer));
    let out_bind = out.operand.map(|(_, buffer)| buffer).or(out.values).into();
    let binds = [gate_bind, Bind::Buffer(&x.buffer), gate_bind, up_bind, up_bind, out_bind];
    let kernel = spec.gate_up_kernel(list.gpu(), out.operand.is_some());
    if let Some(norm) = x.norm {
        let binds = binds_with_norm::<{ ACCESS_WITH_NORM.len() }>(&binds, norm);
        list.dispatch_linear(&kernel, &params, binds, n_groups(gate));
    } else {
        list.dispatch_linear(&kernel, &params, binds, n_groups(gate));
    }
}
