//! RMS norm of a matmul's input: fused into GEMV kernels of one row, where every workgroup computes it for itself.

use stonechat_compute::op::InputNorm;
use stonechat_compute::wgpu::ops::q8;
use stonechat_compute::wgpu::{Access, Bind, GpuBuffer, Source};

use super::planes::CHUNK;

/// Buffers that a norm adds to those of a kernel.
pub const NORM_BUFFERS: usize = 2;

/// `access` of a kernel, followed by the weight and the output of a fused norm.
pub(super) const fn access_with_norm<const N: usize>(access: &[Access]) -> [Access; N] {
    Access::concat(access, &[Access::Read, Access::Write])
}

/// `binds` of a kernel, then the bindings that [`access_with_norm`] adds.
pub(super) fn binds_with_norm<'a, const N: usize>(
    binds: &[Bind<'a>],
    norm: InputNorm<&'a GpuBuffer>,
) -> [Bind<'a>; N] {
    let mut all = [Bind::Buffer(norm.weight); N];
    all[..binds.len()].copy_from_slice(binds);
    all[N - 1] = Bind::Buffer(norm.out);
    all
}

/// Appends a prologue that computes the norm of a row of `k` values, for a kernel of `n_buffers` other buffers.
/// `has_quantize4`: the source already has `quantize4`, and so the functions of [`q8::PACK`].
pub(super) fn with_norm_prologue(
    source: Source,
    k: u32,
    (workgroup, n_buffers): (u32, usize),
    has_quantize4: bool,
) -> Source {
    let chunks = k / CHUNK as u32;
    let source = source
        .constant("NORM_WEIGHT", n_buffers as u32 + 1)
        .constant("NORM_OUT", n_buffers as u32 + 2)
        .constant("CHUNKS", chunks)
        .constant("STEPS", chunks.div_ceil(workgroup))
        .file(include_str!("x_rms_norm.wgsl"));
    if has_quantize4 { source } else { source.file(q8::PACK) }
}
