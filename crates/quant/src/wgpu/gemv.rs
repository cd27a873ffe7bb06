//! GEMV: matmuls of up to [`MAX_GEMV_ROWS`] rows of activations, which read the matrix once for all rows.
//!
//! Quantized formats are multiplied in integers, with activations in [q8](q8), as on the CPU; float formats in f32.
//!
//! ```text
//! workgroup    = WG / lanes teams
//! team         = `lanes` adjacent invocations, `rows` rows of the matrix, `x_rows` rows of activations
//! invocation i : steps i, i + lanes, ... of the K weights (64 quantized or 16 float weights per step), partial sums of
//!                all rows * x_rows outputs of the team in registers
//! then         : reduce the sums over the team; invocation i < rows * x_rows of the team stores output i
//! ```
//!
//! A shader is composed of
//!
//! | part | files |
//! |---|---|
//! | bindings | `matmul_params` + `matrix_bindings`, `gate_up_bindings`, `gemv_group` |
//! | grid, epilogue | `gemv` with `gemv_output_*`, `gemv_gate_up` with `gate_up_output_*`, `gemv_group` |
//! | weights | `plane_access`, `format_*` |
//! | activations | `x_q8`, or `x_rms_norm`: RMS norm fused into the kernel; in f32 part of `gemv_multiply_f32` |
//! | dot products | `gemv_multiply_q8` or `gemv_multiply_f32` |
//! | reduction | `gemv_reduce.*`, `gemv_sums` |

mod gate_up;
mod group;
mod spec;

use stonechat_compute::DType;
use stonechat_compute::op::{Activation, Epilogue, ExpertRoutes};
use stonechat_compute::wgpu::ops::check_len;
use stonechat_compute::wgpu::ops::operand::{GpuOutput, OperandFormat};
use stonechat_compute::wgpu::{Bind, GpuBuffer, Recorder, Source, Variant};
use stonechat_compute::{check_eq, check_multiple};

pub use self::gate_up::{GATE_UP_BUFFERS, GATE_UP_ROWS, matmul_gated};
use self::gate_up::{GATE_UP_SHAPE, GATE_UP_WORKGROUP};
pub use self::group::{GROUP_BUFFERS, MAX_GROUP, matmul_group};
use self::spec::{
    GROUP_WORKGROUP, GemvSpec, Q8_OUTPUT_SHAPE, ROW_BUCKETS, Shape, WORKGROUP, row_bucket,
};
pub use self::spec::{MAX_GEMV_ROWS, NormBound, NormKernel, Q8_OUTPUT_MAX_ROWS};
use super::input_norm::norm_binds;
use super::matmul_args::{ACCESS, Activations, GpuInput, MatmulParams, binds};
use super::matrix::GpuMatrix;
use super::planes::Format;

/// Storage buffers of GEMV with one matrix.
pub const GEMV_BUFFERS: usize = ACCESS.len();

/// Every shader of a format, for tests.
pub(super) fn sources(format: &'static Format, variant: Variant) -> Vec<Source> {
    let spec = |x_rows, lanes, rows| GemvSpec {
        format,
        last: None,
        x_rows,
        shape: Shape { lanes, rows },
        workgroup: WORKGROUP,
        shuffle_lanes: if variant == Variant::Portable { 1 } else { 8 },
        norm_k: 0,
    };
    let mut all: Vec<_> =
        ROW_BUCKETS.into_iter().map(|x_rows| spec(x_rows, 32, 1).source(false, variant)).collect();
    all.push(spec(1, 8, 2).source(false, variant));
    all.push(spec(1, 16, 1).source(true, variant));
    let group = |x_rows| GemvSpec { workgroup: GROUP_WORKGROUP, ..spec(x_rows, 16, 1) };
    all.extend([1, 2].map(|x_rows| group(x_rows).group_source(variant)));
    let Shape { lanes, rows } = Q8_OUTPUT_SHAPE;
    all.extend([1, 4].map(|x_rows| spec(x_rows, lanes, rows).q8_output_source(variant)));
    if format.is_quantized {
        let group_of = |(format, last)| GemvSpec { format, last: Some(last), ..group(1) };
        let q6_k = Format::of(DType::Q6K).into_iter();
        all.extend(
            q6_k.flat_map(|other| [(format, other), (other, format)])
                .map(|formats| group_of(formats).group_source(variant)),
        );
        let Shape { lanes, rows } = GATE_UP_SHAPE;
        let gate_up =
            |x_rows| GemvSpec { workgroup: GATE_UP_WORKGROUP, ..spec(x_rows, lanes, rows) };
        all.push(gate_up(1).gate_up_source(false, variant));
        all.extend([1, 8].map(|x_rows| gate_up(x_rows).gate_up_source(true, variant)));
        if variant == Variant::Subgroups {
            let normed_group = GemvSpec { norm_k: 96, ..group(1) };
            all.extend([
                GemvSpec { norm_k: 96, ..spec(1, 16, 1) }.source(false, variant),
                normed_group.group_source(variant),
                GemvSpec { last: Format::of(DType::Q6K), ..normed_group }.group_source(variant),
                GemvSpec { norm_k: 4096, ..gate_up(1) }.gate_up_source(false, variant),
                GemvSpec { norm_k: 4096, ..gate_up(1) }.gate_up_source(true, variant),
            ]);
        }
    }
    all
}

/// [`matmul`](super::matmul) of up to [`MAX_GEMV_ROWS`] rows, with checked arguments.
pub(super) fn gemv(
    list: &mut Recorder,
    out: GpuOutput<'_>,
    (x, rows): (&Activations<'_>, usize),
    w: &GpuMatrix,
    epilogue: Epilogue<&GpuBuffer>,
) {
    let x_rows = row_bucket(rows);
    let operand = out.operand.map(|(_, buffer)| buffer);
    let shape = match operand {
        Some(_) => Q8_OUTPUT_SHAPE,
        None => Shape::for_matrix(w.n, w, x_rows),
    };
    let spec = GemvSpec::new(list.gpu(), w.format, x_rows, shape).with_norm(x, w);
    let kernel = match operand {
        Some(_) => spec.q8_output_kernel(list.gpu()),
        None => spec.kernel(list.gpu(), false),
    };
    for slice in w.slices.iter() {
        let params = MatmulParams::new(w, slice, x, [rows, w.n], epilogue);
        let mut binds = binds(slice, x, epilogue.bias, out.values.into()).to_vec();
        binds.extend(norm_binds(x.norm).chain(operand.map(Bind::Buffer)));
        let groups = slice.rows.div_ceil(shape.rows_per_workgroup() as usize);
        list.dispatch_linear(&kernel, &params, binds, groups);
    }
}

/// For every route `i` of an expert `e`, with `x` in q8 if `w` is quantized: `out[i, j] = Σ_k x[i / routes_per_row, k] w[e * n + j, k] + bias[e * n + j]`.
/// Shapes: `w` = `[E * n, K]`, `out` = `[n_routes, n]`, packed.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn matmul_experts(
    list: &mut Recorder,
    out: &GpuBuffer,
    input: GpuInput<'_>,
    w: &GpuMatrix,
    args: ExpertRoutes<&GpuBuffer>,
) {
    let ExpertRoutes { routes, n_routes, routes_per_row, n, bias } = args;
    check_eq!(input.rows * routes_per_row, n_routes, "experts: rows of x by routes per row");
    check_multiple!(w.n, n, "experts: rows of the weights");
    check_len("experts", out, n_routes * n);
    check_len("experts", routes, 2 * n_routes);
    bias.inspect(|bias| check_len("experts", bias, w.n));
    let format = w.format.is_quantized.then_some(OperandFormat::Q8);
    let x = Activations::new(list, w, input, format);
    let shape = Shape::for_matrix(n * n_routes, w, 1);
    let kernel = GemvSpec::new(list.gpu(), w.format, 1, shape).kernel(list.gpu(), true);
    let epilogue = Epilogue { bias, activation: Activation::None, accumulate: false };
    for slice in w.slices.iter() {
        let params = MatmulParams {
            routes_per_row: routes_per_row as u32,
            ..MatmulParams::new(w, slice, &x, [n_routes, n], epilogue)
        };
        let mut binds = binds(slice, &x, bias, Bind::Buffer(out));
        binds[3] = Bind::Buffer(routes);
        let groups = [(n as u32).div_ceil(shape.rows_per_workgroup()), n_routes as u32, 1];
        list.dispatch(&kernel, &params, binds, groups);
    }
}
