//! GEMV: matmuls of up to [`MAX_GEMV_ROWS`] rows of activations, which read the matrix once for all rows.
//!
//! Quantized formats are multiplied in integers, with activations in [q8](q8), as on the CPU; float formats in f32.
//!
//! ```text
//! workgroup    = WG / lanes teams
//! team         = `lanes` adjacent invocations, `rows` rows of the matrix, `x_rows` rows of activations
//! invocation i : steps i, i + lanes, ... of the K weights (64 quantized or 16 float weights a step), partial sums of
//!                all rows * x_rows outputs of the team in registers
//! then         : reduce the sums over the team; invocation i < rows * x_rows of the team stores output i
//! ```
//!
//! A shader is composed of
//!
//! | part | files |
//! |---|---|
//! | parameters, bindings | `matmul_params` + `matrix_bindings`, `gate_up_params` + `gate_up_bindings`, `gemv_group` |
//! | grid, epilogue | `gemv` with `gemv_output_*`, `gemv_gate_up` with `gate_up_output_*`, `gemv_group` |
//! | weights | `plane_access`, `format_*` |
//! | activations | `x_q8`, or `x_rms_norm`: RMS norm fused into the kernel; in f32 part of `gemv_multiply_f32` |
//! | dot products | `gemv_multiply_q8` or `gemv_multiply_f32` |
//! | reduction | `gemv_reduce.*`, `gemv_sums` |

mod gate_up;
mod group;

use std::sync::Arc;

use stonechat_compute::DType;
use stonechat_compute::cpu::Activation;
use stonechat_compute::wgpu::ops::gated::GATED_ACTIVATION;
use stonechat_compute::wgpu::ops::operand::{GpuOutput, OperandFormat};
use stonechat_compute::wgpu::ops::{ACTIVATIONS, check_len, kernel_source, q8};
use stonechat_compute::wgpu::{
    Access, Bind, Gpu, GpuBuffer, Kernel, KernelParams, ParamLayout, Recorder, Source, Variant,
};

use self::gate_up::{GATE_UP_SHAPE, GATE_UP_WORKGROUP, GateUpParams};
pub use self::gate_up::{can_fuse_gate_up, gate_up_fuses_norm, matmul_gated};
use self::group::{GROUP_WORKGROUP, GemvGroupParams};
pub use self::group::{can_group, group_fuses_norm, matmul_group};
use super::input_norm::{access_with_norm, binds_with_norm, can_fuse_norm, with_norm_prologue};
use super::matmul::{
    ACCESS, ACCESS_WITH_OPERAND, Activations, CHUNK, GpuEpilogue, GpuInput, MatmulParams, binds,
    format_files, with_format,
};
use super::matrix::GpuMatrix;
use super::planes::Format;

/// Most rows of activations of a GEMV.
pub const MAX_GEMV_ROWS: usize = 8;
/// Rows of activations for which kernels are compiled.
const ROW_BUCKETS: [u32; 4] = [1, 2, 4, MAX_GEMV_ROWS as u32];
/// Invocations in a workgroup.
const WORKGROUP: u32 = 128;
/// Weights that an invocation takes at a time, of quantized formats.
const QUANTIZED_STEP: usize = 64;
/// Invocations that keep a large GPU busy; below, rows are shared by larger teams.
const MIN_BUSY_INVOCATIONS: usize = 48 << 10;
/// Invocations that a large GPU runs at a time.
const WAVE_INVOCATIONS: usize = 64 << 10;
/// Shape of kernels that write q8: a q8 group of rows a workgroup.
const Q8_OUTPUT_SHAPE: Shape = Shape { lanes: 8, rows: 2 };
/// Most rows of activations of these: a team has an invocation for each of its sums.
const Q8_OUTPUT_MAX_ROWS: u32 = Q8_OUTPUT_SHAPE.lanes / Q8_OUTPUT_SHAPE.rows;
const _: () = assert!(WORKGROUP / Q8_OUTPUT_SHAPE.lanes * Q8_OUTPUT_SHAPE.rows == 32);
/// [`ACCESS`] with the weight and the output of a fused norm.
const ACCESS_WITH_NORM: [Access; ACCESS.len() + 2] = access_with_norm(ACCESS);

/// Shape of a team.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    /// Invocations of a team.
    lanes: u32,
    /// Rows of the matrix a team.
    rows: u32,
}

impl Shape {
    /// For `[n, k]` weights of which an invocation takes `step_len` at a time.
    fn of(n: usize, k: usize, step_len: usize, x_rows: u32) -> Self {
        let steps = k.div_ceil(step_len);
        // Steps of an invocation are sequential: three or four at most.
        let mut lanes = (2 * steps).div_ceil(7).next_power_of_two().clamp(8, WORKGROUP as usize);
        while lanes < WORKGROUP as usize && n * lanes < MIN_BUSY_INVOCATIONS && lanes < steps {
            lanes *= 2;
        }
        // A team has an invocation for each of its sums.
        let rows = if n * lanes >= 2 * WAVE_INVOCATIONS && x_rows <= 2 { 2 } else { 1 };
        Self { lanes: lanes as u32, rows }
    }

    /// For `n` rows like those of `w`.
    fn for_matrix(n: usize, w: &GpuMatrix, x_rows: u32) -> Self {
        let step_len = if w.format.is_quantized { QUANTIZED_STEP } else { CHUNK };
        Self::of(n, w.k(), step_len, x_rows)
    }

    /// Rows of the matrix a workgroup of [`WORKGROUP`] invocations.
    fn rows_per_workgroup(self) -> u32 {
        self.rows_per(WORKGROUP)
    }

    fn rows_per(self, workgroup: u32) -> u32 {
        workgroup / self.lanes * self.rows
    }
}

/// Smallest of [`ROW_BUCKETS`] for `rows` rows of activations.
fn row_bucket(rows: usize) -> u32 {
    rows.next_power_of_two() as u32
}

/// Appends the reduction over teams.
fn with_reduction(source: Source, variant: Variant) -> Source {
    let source = source.file(match variant {
        Variant::Portable => include_str!("gemv_reduce.portable.wgsl"),
        Variant::Subgroups => include_str!("gemv_reduce.subgroups.wgsl"),
    });
    source.file(include_str!("gemv_sums.wgsl"))
}

/// Kernels, by number in their keys.
#[derive(Debug, Clone, Copy)]
enum GemvKind {
    Plain,
    Experts,
    GateUp,
    GateUpQ8,
    Group,
    Q8Output,
}

/// Compile-time constants of a GEMV kernel.
#[derive(Debug, Clone, Copy)]
struct GemvSpec {
    format: &'static Format,
    /// Format of the last matrix of a group, if it differs.
    last: Option<&'static Format>,
    /// Rows of activations, one of [`ROW_BUCKETS`].
    x_rows: u32,
    shape: Shape,
    /// Invocations in a workgroup.
    workgroup: u32,
    /// Adjacent invocations of a team that are in one subgroup on any subgroup size of the device.
    shuffle_lanes: u32,
    /// Row length of the RMS norm to fuse; 0 without one.
    norm_k: u32,
}

impl GemvSpec {
    fn new(gpu: &Gpu, format: &'static Format, x_rows: u32, shape: Shape) -> Self {
        let min_subgroup = gpu.adapter().subgroup_sizes.map_or(1, |(min, _)| min);
        let shuffle_lanes = shape.lanes.min(min_subgroup);
        Self { format, last: None, x_rows, shape, workgroup: WORKGROUP, shuffle_lanes, norm_k: 0 }
    }

    /// Fuses the RMS norm of the activations, if they have one, of `w`'s columns.
    fn with_norm(self, x: &Activations<'_>, w: &GpuMatrix) -> Self {
        Self { norm_k: if x.norm.is_some() { w.k() as u32 } else { 0 }, ..self }
    }

    fn key(&self, kind: GemvKind) -> [u32; 4] {
        let Shape { lanes, rows } = self.shape;
        let input = self.norm_k << 8 | self.x_rows;
        let last = self.last.map_or(0, |last| last.code() + 1);
        let formats = last << 16 | self.format.code();
        [formats, input, lanes << 8 | rows, self.workgroup << 8 | kind as u32]
    }

    fn start(
        &self,
        kind: &str,
        params: ParamLayout,
        access: &'static [Access],
        variant: Variant,
    ) -> Source {
        let Self { x_rows, shape: Shape { lanes, rows }, workgroup, shuffle_lanes, norm_k, .. } =
            *self;
        let last = self.last.map_or_else(String::new, |last| format!("+{}", last.dtype));
        let norm = if norm_k > 0 { "-normed" } else { "" };
        let (dtype, variant_name) = (self.format.dtype, variant.name());
        let name = format!("{kind}-{dtype}{last}-{x_rows}-{lanes}x{rows}{norm}-{variant_name}");
        kernel_source(name, params, access, variant, workgroup)
            .constant("LANES", lanes)
            .constant("TEAM_ROWS", rows)
            .constant("X_ROWS", x_rows)
            .constant("SHUFFLE_LANES", shuffle_lanes)
    }

    /// Appends access to weights and activations, and `multiply`, for a kernel of `access`. `has_quantize4`: the source has
    /// `quantize4` already.
    fn with_multiply(&self, source: Source, access: &[Access], has_quantize4: bool) -> Source {
        let source = with_format(source, self.format);
        if !self.format.is_quantized {
            return source.file(include_str!("gemv_multiply_f32.wgsl"));
        }
        let source = match self.norm_k {
            0 => source.file(include_str!("x_q8.wgsl")),
            k => with_norm_prologue(source, k, (self.workgroup, access.len() - 2), has_quantize4),
        };
        source.file(include_str!("gemv_multiply_q8.wgsl"))
    }

    fn source(&self, by_expert: bool, variant: Variant) -> Source {
        let kind = if by_expert { "gemv_experts" } else { "gemv" };
        let access = if self.norm_k > 0 { &ACCESS_WITH_NORM } else { ACCESS };
        let source = self
            .start(kind, MatmulParams::LAYOUT, access, variant)
            .constant("BY_EXPERT", u32::from(by_expert))
            .file(include_str!("matmul_params.wgsl"))
            .file(include_str!("matrix_bindings.wgsl"))
            .file(ACTIVATIONS)
            .file(include_str!("gemv.wgsl"))
            .file(include_str!("gemv_output_f32.wgsl"));
        with_reduction(self.with_multiply(source, access, false), variant)
    }

    fn q8_output_source(&self, variant: Variant) -> Source {
        let source = self
            .start("gemv_q8_output", MatmulParams::LAYOUT, ACCESS_WITH_OPERAND, variant)
            .constant("BY_EXPERT", 0)
            .file(include_str!("matmul_params.wgsl"))
            .file(include_str!("matrix_bindings.wgsl"))
            .file(ACTIVATIONS)
            .file(include_str!("gemv.wgsl"))
            .file(include_str!("gemv_output_q8.wgsl"));
        let source = q8::with_quantize4(source, variant);
        with_reduction(self.with_multiply(source, ACCESS_WITH_OPERAND, true), variant)
    }

    fn gate_up_source(&self, is_q8: bool, variant: Variant) -> Source {
        let access = if self.norm_k > 0 { &gate_up::ACCESS_WITH_NORM } else { gate_up::ACCESS };
        let source = self
            .start(
                if is_q8 { "gemv_gate_up_q8" } else { "gemv_gate_up" },
                GateUpParams::LAYOUT,
                access,
                variant,
            )
            .file(include_str!("gate_up_params.wgsl"))
            .file(include_str!("gate_up_bindings.wgsl"))
            .file(ACTIVATIONS)
            .file(GATED_ACTIVATION)
            .file(include_str!("gemv_gate_up.wgsl"));
        let source = match is_q8 {
            true => {
                q8::with_quantize4(source, variant).file(include_str!("gate_up_output_q8.wgsl"))
            }
            false => source.file(include_str!("gate_up_output_f32.wgsl")),
        };
        with_reduction(self.with_multiply(source, access, is_q8), variant)
    }

    fn group_source(&self, variant: Variant) -> Source {
        let access = if self.norm_k > 0 { &group::ACCESS_WITH_NORM } else { group::ACCESS };
        let source = self
            .start("gemv_group", GemvGroupParams::LAYOUT, access, variant)
            .file(include_str!("gemv_group.wgsl"));
        let source = self.with_multiply(source, access, false);
        let source = match self.last {
            Some(last) => {
                let mut text = format_files(last).concat();
                text.push_str(include_str!("gemv_multiply_q8.wgsl"));
                source.variant_of(&text, &["w_stride", "w_blocks"], "last")
            }
            None => source.file(include_str!("gemv_group_one_format.wgsl")),
        };
        with_reduction(source, variant)
    }

    fn kernel(&self, gpu: &Gpu, by_expert: bool) -> Arc<Kernel> {
        let kind = if by_expert { GemvKind::Experts } else { GemvKind::Plain };
        gpu.kernel(("gemv", self.key(kind)), || self.source(by_expert, gpu.variant()))
    }

    fn q8_output_kernel(&self, gpu: &Gpu) -> Arc<Kernel> {
        let key = self.key(GemvKind::Q8Output);
        gpu.kernel(("gemv", key), || self.q8_output_source(gpu.variant()))
    }

    fn group_kernel(&self, gpu: &Gpu) -> Arc<Kernel> {
        gpu.kernel(("gemv", self.key(GemvKind::Group)), || self.group_source(gpu.variant()))
    }

    fn gate_up_kernel(&self, gpu: &Gpu, is_q8: bool) -> Arc<Kernel> {
        let kind = if is_q8 { GemvKind::GateUpQ8 } else { GemvKind::GateUp };
        gpu.kernel(("gemv", self.key(kind)), || self.gate_up_source(is_q8, gpu.variant()))
    }
}

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
        all.extend([1, 4].map(|x_rows| gate_up(x_rows).gate_up_source(true, variant)));
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

/// Whether [`matmul`] with `w` can write up to `rows` rows in q8.
pub(super) fn writes_q8(w: &GpuMatrix, rows: usize) -> bool {
    rows <= Q8_OUTPUT_MAX_ROWS as usize && w.slices.len() == 1
}

/// Whether a matmul with `w` can compute the norm of its only row.
#[must_use]
pub fn fuses_norm(gpu: &Gpu, w: &GpuMatrix) -> bool {
    let shape = Shape::for_matrix(w.n(), w, 1);
    let n_groups = w.n().div_ceil(shape.rows_per_workgroup() as usize);
    can_fuse_norm(gpu, w, (n_groups, ACCESS.len()))
}

/// [`matmul`](super::matmul) of up to [`MAX_GEMV_ROWS`] rows with checked arguments.
pub(super) fn matmul(
    list: &mut Recorder,
    out: GpuOutput<'_>,
    (x, rows): (&Activations<'_>, usize),
    w: &GpuMatrix,
    epilogue: GpuEpilogue<'_>,
) {
    let x_rows = row_bucket(rows);
    let operand = out.operand.map(|(_, buffer)| buffer);
    let shape = match operand {
        Some(_) => Q8_OUTPUT_SHAPE,
        None => Shape::for_matrix(w.n(), w, x_rows),
    };
    let spec = GemvSpec::new(list.gpu(), w.format, x_rows, shape).with_norm(x, w);
    let kernel = match operand {
        Some(_) => spec.q8_output_kernel(list.gpu()),
        None => spec.kernel(list.gpu(), false),
    };
    for slice in w.slices.iter() {
        let params = MatmulParams::new(w, slice, x, [rows, w.n()], epilogue);
        let binds = binds(slice, x, epilogue.bias, out.values.into());
        let groups = slice.rows.div_ceil(shape.rows_per_workgroup() as usize);
        if let Some(norm) = x.norm {
            let binds = binds_with_norm::<{ ACCESS_WITH_NORM.len() }>(&binds, norm);
            list.dispatch_linear(&kernel, &params, binds, groups);
        } else if let Some(operand) = operand {
            let mut all = [Bind::Buffer(operand); ACCESS_WITH_OPERAND.len()];
            all[..ACCESS.len()].copy_from_slice(&binds);
            list.dispatch_linear(&kernel, &params, all, groups);
        } else {
            list.dispatch_linear(&kernel, &params, binds, groups);
        }
    }
}

/// Arguments of [`matmul_experts`].
#[derive(Debug, Clone, Copy)]
pub struct ExpertMatmul<'a> {
    /// `[T * n_used]` pairs of words: expert and weight.
    pub choices: &'a GpuBuffer,
    /// Number of choices, `T * n_used`.
    pub n_choices: usize,
    /// Choices per row of the activations.
    pub choices_per_row: usize,
    /// Rows of an expert's matrix.
    pub n: usize,
    /// `[E * n]`.
    pub bias: Option<&'a GpuBuffer>,
}

/// For every choice `i` of an expert `e`, with `x` in q8 if `w` is quantized: `out[i, j] = Σ_k x[i / choices_per_row, k] w[e * n + j, k] + bias[e * n + j]`.
/// Shapes: `w` = `[E * n, K]`, `out` = `[n_choices, n]`, packed.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn matmul_experts(
    list: &mut Recorder,
    out: &GpuBuffer,
    input: GpuInput<'_>,
    w: &GpuMatrix,
    args: ExpertMatmul<'_>,
) {
    let ExpertMatmul { choices, n_choices, choices_per_row, n, bias } = args;
    assert_eq!(input.rows * choices_per_row, n_choices, "experts: rows of x");
    assert!(w.n().is_multiple_of(n), "experts: {} rows are no multiple of {n}", w.n());
    check_len("experts", out, n_choices * n);
    check_len("experts", choices, 2 * n_choices);
    bias.inspect(|bias| check_len("experts", bias, w.n()));
    let format = w.format.is_quantized.then_some(OperandFormat::Q8);
    let x = Activations::new(list, w, input, format);
    let shape = Shape::for_matrix(n * n_choices, w, 1);
    let kernel = GemvSpec::new(list.gpu(), w.format, 1, shape).kernel(list.gpu(), true);
    let epilogue = GpuEpilogue { bias, activation: Activation::None, accumulate: false };
    for slice in w.slices.iter() {
        let params = MatmulParams {
            choices_per_row: choices_per_row as u32,
            ..MatmulParams::new(w, slice, &x, [n_choices, n], epilogue)
        };
        let mut binds = binds(slice, &x, bias, Bind::Buffer(out));
        binds[3] = Bind::Buffer(choices);
        let groups = [(n as u32).div_ceil(shape.rows_per_workgroup()), n_choices as u32, 1];
        list.dispatch(&kernel, &params, binds, groups);
    }
}
