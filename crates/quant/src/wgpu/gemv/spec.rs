//! Shapes and sources of GEMV kernels.

use std::sync::Arc;

use stonechat_compute::wgpu::ops::{ACTIVATIONS, kernel_source, q8};
use stonechat_compute::wgpu::{Access, Gpu, Kernel, KernelParams, ParamLayout, Source, Variant};

use super::gate_up::GATE_UP_ROWS;
use crate::wgpu::input_norm::{access_with_norm, with_norm_prologue};
use crate::wgpu::matmul_args::{
    ACCESS, ACCESS_WITH_OPERAND, Activations, MatmulParams, with_format,
};
use crate::wgpu::matrix::GpuMatrix;
use crate::wgpu::planes::{CHUNK, Format};

/// Maximum rows of activations of a GEMV.
pub const MAX_GEMV_ROWS: usize = 8;
/// Rows of activations for which kernels are compiled.
pub(super) const ROW_BUCKETS: [u32; 4] = [1, 2, 4, MAX_GEMV_ROWS as u32];
/// Invocations in a workgroup.
pub(super) const WORKGROUP: u32 = 128;
/// Invocations in a workgroup of a group: a tradeoff, since every workgroup computes a fused norm.
pub(super) const GROUP_WORKGROUP: u32 = 256;
/// Weights that an invocation takes at a time, of quantized formats.
pub(super) const QUANTIZED_STEP: usize = 64;
/// Invocations that keep a large GPU busy; below, rows are shared by larger teams.
pub(super) const MIN_BUSY_INVOCATIONS: usize = 48 << 10;
/// Invocations that a large GPU runs at a time.
pub(super) const WAVE_INVOCATIONS: usize = 64 << 10;
/// Shape of kernels that write q8: one q8 group of rows per workgroup.
pub(super) const Q8_OUTPUT_SHAPE: Shape = Shape { lanes: 8, rows: 2 };
/// Maximum rows of activations of kernels that write q8: a team has one invocation per sum.
pub const Q8_OUTPUT_MAX_ROWS: usize = (Q8_OUTPUT_SHAPE.lanes / Q8_OUTPUT_SHAPE.rows) as usize;
const _: () = assert!(WORKGROUP / Q8_OUTPUT_SHAPE.lanes * Q8_OUTPUT_SHAPE.rows == 32);
/// [`ACCESS`] with the weight and the output of a fused norm.
pub(super) const ACCESS_WITH_NORM: [Access; ACCESS.len() + 2] = access_with_norm(ACCESS);

/// Longest row of a fused norm: a workgroup keeps it in registers and workgroup memory.
const MAX_NORM_COLS: usize = 8192;
/// Most workgroups that compute the norm redundantly: about one wave of a large GPU.
const MAX_NORM_WORKGROUPS: usize = 1024;

/// Kernels that can apply an RMS norm to their only row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormKernel {
    /// [`matmul()`](crate::wgpu::matmul()).
    Gemv,
    /// [`matmul_group`](super::matmul_group).
    Group,
    /// [`matmul_gated`](super::matmul_gated).
    GateUp,
}

/// Shapes of `[N, K]` matrices with which a kernel can apply a norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NormBound {
    /// Largest `K`.
    pub max_k: usize,
    /// Rows of one matrix that a workgroup computes; gate and up count as two matrices.
    pub workgroup_rows: usize,
    /// Largest number of workgroups for all matrices.
    pub max_workgroups: usize,
}

impl NormKernel {
    /// Bounds, one of which has to hold.
    #[must_use]
    pub fn bounds(self) -> Vec<NormBound> {
        let bound = |max_k: usize, rows| NormBound {
            max_k: max_k.min(MAX_NORM_COLS),
            workgroup_rows: rows,
            max_workgroups: MAX_NORM_WORKGROUPS,
        };
        let workgroup = match self {
            Self::GateUp => return vec![bound(MAX_NORM_COLS, 2 * GATE_UP_ROWS)],
            Self::Gemv => WORKGROUP,
            Self::Group => GROUP_WORKGROUP,
        };
        // Fewer workgroups than the limit have teams of one row or of more lanes, see `Shape::of`.
        let shapes = [8, 16, 32, 64].map(|lanes| Shape { lanes, rows: 2 });
        let bounds = shapes.map(|shape| {
            let max_k = shape.lanes as usize * 7 / 2 * QUANTIZED_STEP;
            bound(max_k, shape.rows_per(workgroup) as usize)
        });
        bounds.to_vec()
    }
}

/// Shape of a team.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    /// Invocations of a team.
    pub(super) lanes: u32,
    /// Rows of the matrix a team.
    pub(super) rows: u32,
}

impl Shape {
    /// Shape for `[n, k]` weights, of which an invocation multiplies `step_len` in a step.
    pub(super) fn of(n: usize, k: usize, step_len: usize, x_rows: u32) -> Self {
        let steps = k.div_ceil(step_len);
        // Steps of an invocation are sequential: three or four at most.
        let mut lanes = (2 * steps).div_ceil(7).next_power_of_two().clamp(8, WORKGROUP as usize);
        while lanes < WORKGROUP as usize && n * lanes < MIN_BUSY_INVOCATIONS && lanes < steps {
            lanes *= 2;
        }
        // A team has one invocation per sum.
        let rows = if n * lanes >= 2 * WAVE_INVOCATIONS && x_rows <= 2 { 2 } else { 1 };
        Self { lanes: lanes as u32, rows }
    }

    /// Shape for a matrix of `n` rows, otherwise like `w`.
    pub(super) fn for_matrix(n: usize, w: &GpuMatrix, x_rows: u32) -> Self {
        let step_len = if w.format.is_quantized { QUANTIZED_STEP } else { CHUNK };
        Self::of(n, w.k, step_len, x_rows)
    }

    /// Rows of the matrix a workgroup of [`WORKGROUP`] invocations.
    pub(super) fn rows_per_workgroup(self) -> u32 {
        self.rows_per(WORKGROUP)
    }

    pub(super) fn rows_per(self, workgroup: u32) -> u32 {
        workgroup / self.lanes * self.rows
    }
}

/// Smallest of [`ROW_BUCKETS`] for `rows` rows of activations.
pub(super) fn row_bucket(rows: usize) -> u32 {
    rows.next_power_of_two() as u32
}

/// Appends the reduction over teams.
pub(super) fn with_reduction(source: Source, variant: Variant) -> Source {
    let source = source.file(match variant {
        Variant::Portable => include_str!("../gemv_reduce.portable.wgsl"),
        Variant::Subgroups => include_str!("../gemv_reduce.subgroups.wgsl"),
    });
    source.file(include_str!("../gemv_sums.wgsl"))
}

/// Kernels; the discriminant is part of their cache keys.
#[derive(Debug, Clone, Copy)]
pub(super) enum GemvKind {
    Plain,
    Experts,
    GateUp,
    GateUpQ8,
    Group,
    Q8Output,
}

/// Compile-time constants of a GEMV kernel.
#[derive(Debug, Clone, Copy)]
pub(super) struct GemvSpec {
    pub(super) format: &'static Format,
    /// Format of the last matrix of a group, if it differs.
    pub(super) last: Option<&'static Format>,
    /// Rows of activations, one of [`ROW_BUCKETS`].
    pub(super) x_rows: u32,
    pub(super) shape: Shape,
    /// Invocations in a workgroup.
    pub(super) workgroup: u32,
    /// Adjacent invocations of a team that are in one subgroup on any subgroup size of the device.
    pub(super) shuffle_lanes: u32,
    /// Row length of the RMS norm to fuse; 0 without one.
    pub(super) norm_k: u32,
}

impl GemvSpec {
    pub(super) fn new(gpu: &Gpu, format: &'static Format, x_rows: u32, shape: Shape) -> Self {
        let min_subgroup = gpu.adapter().subgroup_sizes.map_or(1, |(min, _)| min);
        let shuffle_lanes = shape.lanes.min(min_subgroup);
        Self { format, last: None, x_rows, shape, workgroup: WORKGROUP, shuffle_lanes, norm_k: 0 }
    }

    /// Fuses the RMS norm of the activations, if they have one, of `w`'s columns.
    pub(super) fn with_norm(self, x: &Activations<'_>, w: &GpuMatrix) -> Self {
        Self { norm_k: if x.norm.is_some() { w.k as u32 } else { 0 }, ..self }
    }

    pub(super) fn key(&self, kind: GemvKind) -> [u32; 4] {
        let Shape { lanes, rows } = self.shape;
        let input = self.norm_k << 8 | self.x_rows;
        let last = self.last.map_or(0, |last| last.code() + 1);
        let formats = last << 16 | self.format.code();
        [formats, input, lanes << 8 | rows, self.workgroup << 8 | kind as u32]
    }

    pub(super) fn start(
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
    pub(super) fn with_multiply(
        &self,
        source: Source,
        access: &[Access],
        has_quantize4: bool,
    ) -> Source {
        let source = with_format(source, self.format);
        if !self.format.is_quantized {
            return source.file(include_str!("../gemv_multiply_f32.wgsl"));
        }
        let source = match self.norm_k {
            0 => source.file(include_str!("../x_q8.wgsl")),
            k => with_norm_prologue(source, k, (self.workgroup, access.len() - 2), has_quantize4),
        };
        source.file(include_str!("../gemv_multiply_q8.wgsl"))
    }

    pub(super) fn source(&self, by_expert: bool, variant: Variant) -> Source {
        let kind = if by_expert { "gemv_experts" } else { "gemv" };
        let access = if self.norm_k > 0 { &ACCESS_WITH_NORM } else { ACCESS };
        let source = self
            .start(kind, MatmulParams::LAYOUT, access, variant)
            .constant("BY_EXPERT", u32::from(by_expert))
            .file(include_str!("../matmul_params.wgsl"))
            .file(include_str!("../matrix_bindings.wgsl"))
            .file(ACTIVATIONS)
            .file(include_str!("../gemv.wgsl"))
            .file(include_str!("../gemv_output_f32.wgsl"));
        with_reduction(self.with_multiply(source, access, false), variant)
    }

    pub(super) fn q8_output_source(&self, variant: Variant) -> Source {
        let source = self
            .start("gemv_q8_output", MatmulParams::LAYOUT, ACCESS_WITH_OPERAND, variant)
            .constant("BY_EXPERT", 0)
            .file(include_str!("../matmul_params.wgsl"))
            .file(include_str!("../matrix_bindings.wgsl"))
            .file(ACTIVATIONS)
            .file(include_str!("../gemv.wgsl"))
            .file(include_str!("../gemv_output_q8.wgsl"));
        let source = q8::with_quantize4(source, variant);
        with_reduction(self.with_multiply(source, ACCESS_WITH_OPERAND, true), variant)
    }

    pub(super) fn kernel(&self, gpu: &Gpu, by_expert: bool) -> Arc<Kernel> {
        let kind = if by_expert { GemvKind::Experts } else { GemvKind::Plain };
        gpu.kernel(("gemv", self.key(kind)), || self.source(by_expert, gpu.variant()))
    }

    pub(super) fn q8_output_kernel(&self, gpu: &Gpu) -> Arc<Kernel> {
        let key = self.key(GemvKind::Q8Output);
        gpu.kernel(("gemv", key), || self.q8_output_source(gpu.variant()))
    }
}

#[cfg(test)]
mod tests {
    use super::{
        GROUP_WORKGROUP, MAX_NORM_COLS, MAX_NORM_WORKGROUPS, NormKernel, QUANTIZED_STEP, Shape,
        WORKGROUP,
    };

    /// Whether launches with matrices of these rows have few enough workgroups, with another rule than [`NormKernel::bounds`].
    fn fits(all: &[usize], k: usize, workgroup: u32) -> bool {
        let shape = Shape::of(all.iter().sum(), k, QUANTIZED_STEP, 1);
        let n_groups = |n: &usize| n.div_ceil(shape.rows_per(workgroup) as usize);
        k <= MAX_NORM_COLS && all.iter().map(n_groups).sum::<usize>() <= MAX_NORM_WORKGROUPS
    }

    #[test]
    fn bounds_of_norms_are_those_of_the_launches() {
        let sizes: Vec<usize> =
            (6..17).flat_map(|i| [1 << i, (1 << i) + 8, 3 << (i - 1)]).collect();
        let ks = (1..=160).map(|i| 64 * i);
        for (k, &n) in ks.flat_map(|k| sizes.iter().map(move |n| (k, n))) {
            for (kernel, workgroup, all) in [
                (NormKernel::Gemv, WORKGROUP, &[n][..]),
                (NormKernel::Group, GROUP_WORKGROUP, &[n, n / 4]),
                (NormKernel::Group, GROUP_WORKGROUP, &[n, n / 8 + 1, n / 8 + 1]),
            ] {
                let is_bounded = kernel.bounds().iter().any(|bound| {
                    let n_groups = all.iter().map(|n| n.div_ceil(bound.workgroup_rows));
                    k <= bound.max_k && n_groups.sum::<usize>() <= bound.max_workgroups
                });
                assert_eq!(is_bounded, fits(all, k, workgroup), "{kernel:?}: {all:?} by {k}");
            }
        }
    }
}
