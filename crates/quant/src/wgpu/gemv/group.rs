//! Products of the same activations with several matrices in one kernel: up to three of one format, or of two, the
//! last of another.

use bytemuck::{Pod, Zeroable};
use stonechat_compute::wgpu::ops::check_len;
use stonechat_compute::wgpu::{Access, Bind, Gpu, GpuBuffer};

use super::{
    CHUNK, Format, GpuMatrix, Input, MAX_GEMV_ROWS, Shape, Spec, activations_of, normed_access,
    normed_binds, width,
};

/// Bindings of `gemv_group.wgsl`: a matrix, activations, the matrix again, the other matrices twice, biases,
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
/// And the weights of a norm and what it gives.
pub(super) const NORMED_ACCESS: [Access; ACCESS.len() + 2] = normed_access(ACCESS);
/// Invocations of a workgroup: each makes the norm for itself, 15.8 us instead of 18.1 with 128 and 17.5 with 512 for
/// 6144 x 4096 on an H200.
pub(super) const GROUP_WORKGROUP: u32 = 256;
/// Matrices of a group.
const MAX_GROUP: usize = 3;

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct GroupParams {
    n: [u32; 4],
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

/// A product of a [`Group`]: output, matrix and bias.
type Grouped<'a> = (&'a GpuBuffer, &'a GpuMatrix, Option<&'a GpuBuffer>);

/// Whether products of `rows` rows with both matrices can be one kernel.
fn is_group(gpu: &Gpu, a: &GpuMatrix, b: &GpuMatrix, rows: usize) -> bool {
    let seen_at_once = a.parts.len() == 1 && b.parts.len() == 1;
    // What has codes takes the same activations in every format.
    let is_same = a.format.dtype == b.format.dtype;
    let is_alike = (is_same || a.format.has_codes && b.format.has_codes) && a.k() == b.k();
    let has_room = gpu.max_buffers() >= ACCESS.len();
    is_alike && seen_at_once && has_room && (1..=MAX_GEMV_ROWS).contains(&rows)
}

/// Products with up to [`MAX_GROUP`] matrices; the outputs are different buffers.
#[derive(Debug, Default)]
pub(in crate::wgpu) struct Group<'a> {
    products: Vec<Grouped<'a>>,
    /// The format of the last, if it is not that of the others.
    last: Option<&'static Format>,
}

impl<'a> Group<'a> {
    /// Takes a product of `rows` rows, if it can be one kernel with those that were taken.
    pub(in crate::wgpu) fn take(&mut self, gpu: &Gpu, rows: usize, product: Grouped<'a>) -> bool {
        let w = product.1;
        let first = self.products.first().map_or(w, |first| first.1);
        if self.products.len() == MAX_GROUP || !is_group(gpu, first, w, rows) {
            return false;
        }
        let n = self.products.len();
        let is_other = w.format.dtype != first.format.dtype;
        match self.last {
            Some(_) if is_other => return false,
            Some(_) => self.products.insert(n - 1, product),
            None => self.products.push(product),
        }
        if is_other {
            self.last = Some(w.format);
        }
        true
    }

    /// Those that were taken.
    pub(in crate::wgpu) fn products(&self) -> &[Grouped<'a>] {
        &self.products
    }

    /// Records the products with `input` as one kernel.
    ///
    /// # Panics
    /// If the shapes do not fit or there are none.
    #[track_caller]
    pub(in crate::wgpu) fn record(&self, gpu: &Gpu, input: &mut Input<'_>) {
        let x = input.x.checked();
        let (w, last) = (self.products[0].1, self.products[self.products.len() - 1].1);
        assert_eq!(x.cols, w.k(), "group: columns of x");
        for (out, other, bias) in &self.products {
            check_len("group", out, x.rows * other.n());
            bias.inspect(|bias| check_len("group", bias, other.n()));
        }
        let width = width(x.rows);
        let n = self.products.iter().map(|(_, w, _)| w.n()).sum();
        let shape = Shape::for_matrix(n, w, width);
        let n_groups = |w: &GpuMatrix| w.n().div_ceil(shape.rows_of(GROUP_WORKGROUP) as usize);
        let groups = self.products.iter().map(|(_, w, _)| n_groups(w)).sum();
        let outs: Vec<_> = self.products.iter().map(|(out, ..)| *out).collect();
        let normed = input.joined(gpu, w, (groups, ACCESS.len()), &outs);
        let Some(x8) = activations_of(gpu, w, x, normed) else { return };
        let mut params = GroupParams {
            n: [0; 4],
            has_bias: 0,
            w_stride: w.stride() as u32,
            w_blocks: w.n_blocks() as u32,
            chunks: (w.padded_k() / CHUNK) as u32,
            rows: x.rows as u32,
            x_offset: x8.offset as u32,
            x_stride: x8.stride as u32,
            norm_eps: normed.map_or(0.0, |normed| normed.eps),
            w_stride_last: last.stride() as u32,
            w_blocks_last: last.n_blocks() as u32,
        };
        let mut binds = [Bind::Nothing; ACCESS.len()];
        binds[1] = Bind::Buffer(&x8.buffer);
        for (i, (out, w, bias)) in self.products.iter().enumerate() {
            let is_other = self.last.is_some() && i + 1 == self.products.len();
            let i = if is_other { MAX_GROUP - 1 } else { i };
            params.n[i] = w.n() as u32;
            params.has_bias |= u32::from(bias.is_some()) << i;
            let matrix = Bind::Buffer(&w.parts[0].buffer);
            // The activations stand between the views of the first matrix.
            binds[if i == 0 { 0 } else { 2 * i + 1 }] = matrix;
            binds[2 * i + 2] = matrix;
            binds[7 + i] = (*bias).into();
            binds[10 + i] = Bind::Buffer(out);
        }
        let spec = Spec {
            last: self.last,
            workgroup: GROUP_WORKGROUP,
            ..Spec::new(gpu, w.format, width, shape)
        };
        let kernel = spec.normed(normed).group_kernel(gpu);
        if let Some(normed) = normed {
            let binds = normed_binds::<{ NORMED_ACCESS.len() }>(&binds, normed, x.buffer);
            gpu.record(0).dispatch_line(&kernel, &params, binds, groups);
        } else {
            gpu.record(0).dispatch_line(&kernel, &params, binds, groups);
        }
    }
}
