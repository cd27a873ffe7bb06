//! Products of the same activations with several matrices in one kernel.

use bytemuck::{Pod, Zeroable};
use stonechat_compute::wgpu::ops::check_len;
use stonechat_compute::wgpu::{Access, Bind, Gpu, GpuBuffer};

use super::{
    CHUNK, GpuMatrix, Input, MAX_GEMV_ROWS, Shape, Spec, activations_of, normed_access,
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
/// Matrices of a group.
pub(in crate::wgpu) const MAX_GROUP: usize = 3;

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
}

/// A product of a [group](matmul_group): output, matrix and bias.
pub(in crate::wgpu) type Grouped<'a> = (&'a GpuBuffer, &'a GpuMatrix, Option<&'a GpuBuffer>);

/// Whether products of `rows` rows with both matrices can be one kernel.
pub(in crate::wgpu) fn is_group(gpu: &Gpu, a: &GpuMatrix, b: &GpuMatrix, rows: usize) -> bool {
    let seen_at_once = a.parts.len() == 1 && b.parts.len() == 1;
    let alike = a.dtype() == b.dtype() && a.k() == b.k();
    let has_room = gpu.max_buffers() >= ACCESS.len();
    alike && seen_at_once && has_room && (1..=MAX_GEMV_ROWS).contains(&rows)
}

/// The products of `x` with up to [`MAX_GROUP`] matrices, of which any two are a [group](is_group), by one kernel;
/// the outputs are different buffers.
///
/// # Panics
/// If the shapes do not fit or the matrices are no group.
#[track_caller]
pub(in crate::wgpu) fn matmul_group(gpu: &Gpu, input: &mut Input<'_>, products: &[Grouped<'_>]) {
    let x = input.x.checked();
    assert!((1..=MAX_GROUP).contains(&products.len()), "group of {} products", products.len());
    let w = products[0].1;
    assert_eq!(x.cols, w.k(), "group: columns of x");
    for (out, other, bias) in products {
        assert!(is_group(gpu, w, other, x.rows), "group: matrices are not alike");
        check_len("group", out, x.rows * other.n());
        bias.inspect(|bias| check_len("group", bias, other.n()));
    }
    let width = width(x.rows);
    let n = products.iter().map(|(_, w, _)| w.n()).sum();
    let shape = Shape::for_matrix(n, w, width);
    let n_groups = |w: &GpuMatrix| w.n().div_ceil(shape.rows_of_group() as usize);
    let groups = products.iter().map(|(_, w, _)| n_groups(w)).sum();
    let outs: Vec<_> = products.iter().map(|(out, ..)| *out).collect();
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
    };
    let mut binds = [Bind::Nothing; ACCESS.len()];
    binds[1] = Bind::Buffer(&x8.buffer);
    for (i, (out, w, bias)) in products.iter().enumerate() {
        params.n[i] = w.n() as u32;
        params.has_bias |= u32::from(bias.is_some()) << i;
        let matrix = Bind::Buffer(&w.parts[0].buffer);
        // The activations stand between the views of the first matrix.
        binds[if i == 0 { 0 } else { 2 * i + 1 }] = matrix;
        binds[2 * i + 2] = matrix;
        binds[7 + i] = (*bias).into();
        binds[10 + i] = Bind::Buffer(out);
    }
    let kernel = Spec::new(gpu, w.format, width, shape).normed(normed).group_kernel(gpu);
    if let Some(normed) = normed {
        let binds = normed_binds::<{ NORMED_ACCESS.len() }>(&binds, normed, x.buffer);
        gpu.record(0).dispatch_line(&kernel, &params, binds, groups);
    } else {
        gpu.record(0).dispatch_line(&kernel, &params, binds, groups);
    }
}
