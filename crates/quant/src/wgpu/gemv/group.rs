//! GEMV of the same activations with up to three matrices in one kernel, as Q, K and V; the last may have another format.

use std::sync::Arc;

use stonechat_compute::kernel_params;
use stonechat_compute::wgpu::Access::{self, Read, Write};
use stonechat_compute::wgpu::ops::check_len;
use stonechat_compute::wgpu::ops::operand::OperandFormat;
use stonechat_compute::wgpu::{
    Bind, Gpu, GpuBuffer, Kernel, KernelParams, Recorder, Source, Variant,
};

use super::spec::{
    GROUP_WORKGROUP, GemvKind, GemvSpec, MAX_GEMV_ROWS, Shape, row_bucket, with_reduction,
};
use crate::wgpu::input_norm::{access_with_norm, norm_binds};
use crate::wgpu::matmul_args::{Activations, GpuInput, format_files};
use crate::wgpu::matrix::GpuMatrix;
use crate::wgpu::planes::{CHUNK, Format};

/// Bindings of `gemv_group.wgsl`: matrix 0, activations, matrix 0 again, matrices 1 and 2 twice each, 3 biases, 3
/// outputs.
pub(super) const ACCESS: &[Access] =
    &[Read, Read, Read, Read, Read, Read, Read, Read, Read, Read, Write, Write, Write];
/// [`ACCESS`] with the weight and the output of a fused norm.
pub(super) const ACCESS_WITH_NORM: [Access; ACCESS.len() + 2] = access_with_norm(ACCESS);
/// Maximum matrices of a group.
pub const MAX_GROUP: usize = 3;
/// Storage buffers of the kernel.
pub const GROUP_BUFFERS: usize = ACCESS.len();

kernel_params! {
    pub(super) struct GemvGroupParams {
        /// Rows of each matrix.
        n: [u32; 4],
        /// Bit `i`: matrix `i` has a bias.
        has_bias: u32,
        w_stride: u32,
        w_blocks: u32,
        chunks: u32,
        rows: u32,
        x_offset: u32,
        x_stride: u32,
        norm_eps: f32,
        /// Row length and blocks of a row of the last matrix.
        w_stride_last: u32,
        w_blocks_last: u32,
    }
}

impl GemvSpec {
    pub(super) fn group_source(&self, variant: Variant) -> Source {
        let access = if self.norm_k > 0 { &ACCESS_WITH_NORM } else { ACCESS };
        let source = self
            .start("gemv_group", GemvGroupParams::LAYOUT, access, variant)
            .file(include_str!("../gemv_group.wgsl"));
        let source = self.with_multiply(source, access, false);
        let source = match self.last {
            Some(last) => {
                let mut text = format_files(last).concat();
                text.push_str(include_str!("../gemv_multiply_q8.wgsl"));
                source.variant_of(&text, &["w_stride", "w_blocks"], "last")
            }
            None => source.file(include_str!("../gemv_group_one_format.wgsl")),
        };
        with_reduction(source, variant)
    }

    fn group_kernel(&self, gpu: &Gpu) -> Arc<Kernel> {
        gpu.kernel(("gemv", self.key(GemvKind::Group)), || self.group_source(gpu.variant()))
    }
}

/// Order of the matrices in the kernel, and the format of the last one if it differs from the others; `None` if one
/// kernel cannot multiply `rows` rows of activations with all of them.
fn order(all: &[&GpuMatrix], rows: usize) -> Option<([usize; MAX_GROUP], Option<&'static Format>)> {
    let first = all.first()?;
    let fits = |w: &&GpuMatrix| w.k == first.k && w.slices.len() == 1;
    let is_alike = |w: &GpuMatrix| w.format.dtype == first.format.dtype;
    let same_rows = (1..=MAX_GEMV_ROWS).contains(&rows);
    if all.len() > MAX_GROUP || !all.iter().all(fits) || !same_rows {
        return None;
    }
    let others: Vec<usize> = (0..all.len()).filter(|&i| !is_alike(all[i])).collect();
    let mut order = [0, 1, 2];
    match others[..] {
        [] => Some((order, None)),
        // Quantized formats share the q8 operand.
        [other] if first.format.is_quantized && all[other].format.is_quantized => {
            order[other..all.len()].rotate_left(1);
            Some((order, Some(all[other].format)))
        }
        _ => None,
    }
}

/// Shape of the teams, and workgroups of the kernel.
fn shape(all: &[&GpuMatrix], x_rows: u32) -> (Shape, usize) {
    let n = all.iter().map(|w| w.n).sum();
    let shape = Shape::for_matrix(n, all[0], x_rows);
    let n_groups = |w: &&GpuMatrix| w.n.div_ceil(shape.rows_per(GROUP_WORKGROUP) as usize);
    (shape, all.iter().map(n_groups).sum())
}

/// Matmuls of one input, each with a bias at most: `out_i[t] = x[t] · w_i + bias_i`. The outputs are different buffers.
///
/// # Panics
/// If the shapes or types do not fit, or a matrix is split.
#[track_caller]
pub fn matmul_group(
    list: &mut Recorder,
    input: GpuInput<'_>,
    matmuls: &[(&GpuBuffer, &GpuMatrix, Option<&GpuBuffer>)],
) {
    let rows = input.rows;
    let all: Vec<&GpuMatrix> = matmuls.iter().map(|(_, w, _)| *w).collect();
    let Some((order, last_format)) = order(&all, rows) else {
        panic!("group: expected matrices of supported formats and sizes");
    };
    for (out, w, bias) in matmuls {
        check_len("group", out, rows * w.n);
        bias.inspect(|bias| check_len("group", bias, w.n));
    }
    let x_rows = row_bucket(rows);
    let (shape, groups) = shape(&all, x_rows);
    let (w, last) = (all[0], all[order[all.len() - 1]]);
    let format = w.format.is_quantized.then_some(OperandFormat::Q8);
    let x = Activations::new(list, w, input, format);
    let mut params = GemvGroupParams {
        n: [0; 4],
        has_bias: 0,
        w_stride: w.stride() as u32,
        w_blocks: w.n_blocks() as u32,
        chunks: (w.padded_k / CHUNK) as u32,
        rows: rows as u32,
        x_offset: x.offset as u32,
        x_stride: x.stride as u32,
        norm_eps: x.norm.map_or(0.0, |norm| norm.eps),
        w_stride_last: last.stride() as u32,
        w_blocks_last: last.n_blocks() as u32,
    };
    let mut binds = [Bind::Unused; ACCESS.len()];
    binds[1] = Bind::Buffer(&x.buffer);
    for (at, &i) in order[..all.len()].iter().enumerate() {
        let (out, w, bias) = matmuls[i];
        let is_other = last_format.is_some() && at + 1 == all.len();
        let at = if is_other { MAX_GROUP - 1 } else { at };
        params.n[at] = w.n as u32;
        params.has_bias |= u32::from(bias.is_some()) << at;
        let matrix = Bind::Buffer(&w.slices[0].buffer);
        // The activations are between the two bindings of matrix 0.
        binds[if at == 0 { 0 } else { 2 * at + 1 }] = matrix;
        binds[2 * at + 2] = matrix;
        binds[7 + at] = bias.into();
        binds[10 + at] = Bind::Buffer(out);
    }
    let spec = GemvSpec {
        last: last_format,
        workgroup: GROUP_WORKGROUP,
        ..GemvSpec::new(list.gpu(), w.format, x_rows, shape)
    };
    let kernel = spec.with_norm(&x, w).group_kernel(list.gpu());
    let binds: Vec<_> = binds.into_iter().chain(norm_binds(x.norm)).collect();
    list.dispatch_linear(&kernel, &params, binds, groups);
}
