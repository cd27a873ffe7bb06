//! GEMV of the same activations with up to three matrices in one kernel, as Q, K and V; the last may have another format.

use stonechat_compute::kernel_params;
use stonechat_compute::wgpu::ops::check_len;
use stonechat_compute::wgpu::{Access, Bind, Gpu, GpuBuffer};

use super::{
    CHUNK, Format, GemvSpec, GpuMatrix, MAX_GEMV_ROWS, MatmulInput, Shape, access_with_norm,
    binds_with_norm, fused_or_prepared, row_bucket,
};

/// Bindings of `gemv_group.wgsl`: matrix 0, activations, matrix 0 again, matrices 1 and 2 twice each, 3 biases, 3
/// outputs.
pub(super) const ACCESS: &[Access] = &[
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Write,
    Access::Write,
    Access::Write,
];
/// [`ACCESS`] with the weight and the output of a fused norm.
pub(super) const ACCESS_WITH_NORM: [Access; ACCESS.len() + 2] = access_with_norm(ACCESS);
/// Invocations in a workgroup: a tradeoff, since every workgroup computes a fused norm.
pub(super) const GROUP_WORKGROUP: u32 = 256;
/// Most matrices of a group.
const MAX_GROUP: usize = 3;

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
        w_stride_last: u32,
        w_blocks_last: u32,
    }
}

/// Output, matrix and bias of a matmul in a [`GemvGroup`].
type GroupMatmul<'a> = (&'a GpuBuffer, &'a GpuMatrix, Option<&'a GpuBuffer>);

/// Whether one kernel can multiply `rows` rows of activations with both matrices.
fn can_group(gpu: &Gpu, a: &GpuMatrix, b: &GpuMatrix, rows: usize) -> bool {
    let is_unsplit = a.slices.len() == 1 && b.slices.len() == 1;
    // Quantized formats share the q8 copy of the activations.
    let same_activations =
        a.format.dtype == b.format.dtype || a.format.is_quantized && b.format.is_quantized;
    let has_bindings = gpu.max_buffers() >= ACCESS.len();
    same_activations
        && a.k() == b.k()
        && is_unsplit
        && has_bindings
        && (1..=MAX_GEMV_ROWS).contains(&rows)
}

/// Matmuls with up to [`MAX_GROUP`] matrices; the outputs are different buffers.
#[derive(Debug, Default)]
pub(in crate::wgpu) struct GemvGroup<'a> {
    matmuls: Vec<GroupMatmul<'a>>,
    /// Format of the last matrix, if it differs from that of the others.
    last: Option<&'static Format>,
}

impl<'a> GemvGroup<'a> {
    /// Adds a matmul of `rows` rows, if one kernel can do it together with the others; returns whether it did.
    pub(in crate::wgpu) fn try_push(
        &mut self,
        gpu: &Gpu,
        rows: usize,
        matmul: GroupMatmul<'a>,
    ) -> bool {
        let w = matmul.1;
        let first = self.matmuls.first().map_or(w, |first| first.1);
        if self.matmuls.len() == MAX_GROUP || !can_group(gpu, first, w, rows) {
            return false;
        }
        let n = self.matmuls.len();
        let is_other = w.format.dtype != first.format.dtype;
        match self.last {
            Some(_) if is_other => return false,
            Some(_) => self.matmuls.insert(n - 1, matmul),
            None => self.matmuls.push(matmul),
        }
        if is_other {
            self.last = Some(w.format);
        }
        true
    }

    /// The matmuls of the group.
    pub(in crate::wgpu) fn matmuls(&self) -> &[GroupMatmul<'a>] {
        &self.matmuls
    }

    /// Records the matmuls with `input` as one kernel.
    ///
    /// # Panics
    /// If the shapes do not fit or the group is empty.
    #[track_caller]
    pub(in crate::wgpu) fn record(&self, gpu: &Gpu, input: &mut MatmulInput<'_>) {
        let x = input.x.checked();
        let (w, last) = (self.matmuls[0].1, self.matmuls[self.matmuls.len() - 1].1);
        assert_eq!(x.cols, w.k(), "group: columns of x");
        for (out, other, bias) in &self.matmuls {
            check_len("group", out, x.rows * other.n());
            bias.inspect(|bias| check_len("group", bias, other.n()));
        }
        let x_rows = row_bucket(x.rows);
        let n = self.matmuls.iter().map(|(_, w, _)| w.n()).sum();
        let shape = Shape::for_matrix(n, w, x_rows);
        let n_groups = |w: &GpuMatrix| w.n().div_ceil(shape.rows_per(GROUP_WORKGROUP) as usize);
        let groups = self.matmuls.iter().map(|(_, w, _)| n_groups(w)).sum();
        let outs: Vec<_> = self.matmuls.iter().map(|(out, ..)| *out).collect();
        let norm = input.fuse_norm(gpu, w, (groups, ACCESS.len()), &outs);
        let Some(activations) = fused_or_prepared(gpu, w, x, norm) else { return };
        let mut params = GemvGroupParams {
            n: [0; 4],
            has_bias: 0,
            w_stride: w.stride() as u32,
            w_blocks: w.n_blocks() as u32,
            chunks: (w.padded_k() / CHUNK) as u32,
            rows: x.rows as u32,
            x_offset: activations.offset as u32,
            x_stride: activations.stride as u32,
            norm_eps: norm.map_or(0.0, |norm| norm.eps),
            w_stride_last: last.stride() as u32,
            w_blocks_last: last.n_blocks() as u32,
        };
        let mut binds = [Bind::Unused; ACCESS.len()];
        binds[1] = Bind::Buffer(&activations.buffer);
        for (i, (out, w, bias)) in self.matmuls.iter().enumerate() {
            let is_other = self.last.is_some() && i + 1 == self.matmuls.len();
            let i = if is_other { MAX_GROUP - 1 } else { i };
            params.n[i] = w.n() as u32;
            params.has_bias |= u32::from(bias.is_some()) << i;
            let matrix = Bind::Buffer(&w.slices[0].buffer);
            // The activations are between the two bindings of matrix 0.
            binds[if i == 0 { 0 } else { 2 * i + 1 }] = matrix;
            binds[2 * i + 2] = matrix;
            binds[7 + i] = (*bias).into();
            binds[10 + i] = Bind::Buffer(out);
        }
        let spec = GemvSpec {
            last: self.last,
            workgroup: GROUP_WORKGROUP,
            ..GemvSpec::new(gpu, w.format, x_rows, shape)
        };
        let kernel = spec.with_norm(norm).group_kernel(gpu);
        if let Some(norm) = norm {
            let binds = binds_with_norm::<{ ACCESS_WITH_NORM.len() }>(&binds, norm, x.buffer);
            gpu.record(0).dispatch_linear(&kernel, &params, binds, groups);
        } else {
            gpu.record(0).dispatch_linear(&kernel, &params, binds, groups);
        }
    }
}
