//! RMS norm of a matmul's input: fused into GEMV kernels of one row, where every workgroup computes it for itself.

use stonechat_compute::wgpu::ops::{GpuRows, norm, q8_copy};
use stonechat_compute::wgpu::{Access, Bind, Gpu, GpuBuffer, Source, Variant};

use super::matmul::CHUNK;
use super::matrix::GpuMatrix;

/// Longest row: a workgroup keeps it in registers and workgroup memory.
const MAX_COLS: usize = 8192;
/// Most workgroups that compute the norm redundantly: about one wave of a large GPU.
const MAX_GROUPS: usize = 1024;

/// RMS norm to apply to the input of a matmul: `x[t] / sqrt(mean(x[t]²) + eps) * weight`.
#[derive(Debug, Clone, Copy)]
pub struct InputNorm<'a> {
    /// Input of the norm, `[T, K]`.
    pub x: GpuRows<'a>,
    /// `[K]`.
    pub weight: &'a GpuBuffer,
    /// Epsilon.
    pub eps: f32,
}

impl InputNorm<'_> {
    /// Records the norm as a kernel of its own; `out` is packed `[T, K]`.
    pub fn record(self, gpu: &Gpu, out: &GpuBuffer) {
        norm::rms_norm(gpu, out, self.x, self.weight, (self.eps, false));
    }

    /// Whether a GEMV kernel with `w`, of `n_groups` workgroups and `n_buffers` other buffers, can compute the norm.
    pub(super) fn can_fuse(
        &self,
        gpu: &Gpu,
        w: &GpuMatrix,
        (n_groups, n_buffers): (usize, usize),
    ) -> bool {
        gpu.variant() == Variant::Subgroups
            && self.x.rows == 1
            && self.x.offset.is_multiple_of(4)
            && self.x.cols == w.k()
            && w.format.is_quantized
            && w.k().is_multiple_of(q8_copy::GROUP_LEN)
            && w.k() == w.padded_k()
            && w.k() <= MAX_COLS
            && w.slices.len() == 1
            && n_groups <= MAX_GROUPS
            && n_buffers + 2 <= gpu.max_buffers()
    }
}

/// `access` of a kernel, followed by the weight and the output of a fused norm.
pub(super) const fn access_with_norm<const N: usize>(access: &[Access]) -> [Access; N] {
    Access::concat(access, &[Access::Read, Access::Write])
}

/// `binds` of a kernel, followed by those that [`access_with_norm`] adds; `out` is the output of the norm.
pub(super) fn binds_with_norm<'a, const N: usize>(
    binds: &[Bind<'a>],
    norm: InputNorm<'a>,
    out: &'a GpuBuffer,
) -> [Bind<'a>; N] {
    let mut all = [Bind::Buffer(norm.weight); N];
    all[..binds.len()].copy_from_slice(binds);
    all[N - 1] = Bind::Buffer(out);
    all
}

/// Appends a prologue that computes the norm of a row of `k` values, for a kernel of `n_buffers` other buffers.
/// `has_quantize4`: the source already has `quantize4`, and so the functions of [`q8_copy::PACK`].
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
    if has_quantize4 { source } else { source.file(q8_copy::PACK) }
}

/// Input of matmuls: activations, which may still be the output of a pending norm.
#[derive(Debug, Clone, Copy)]
pub(super) struct MatmulInput<'a> {
    pub(super) x: GpuRows<'a>,
    /// RMS norm whose output is `x`; `None` once it was recorded as a kernel of its own.
    norm: Option<InputNorm<'a>>,
    /// Whether a recorded kernel writes `x`.
    is_ready: bool,
}

impl<'a> MatmulInput<'a> {
    /// Input `x`; with a norm, `x` is its output, which no kernel writes yet.
    pub(super) fn new(x: GpuRows<'a>, norm: Option<InputNorm<'a>>) -> Self {
        Self { x, norm, is_ready: norm.is_none() }
    }

    /// Norm to fuse into a kernel with `w` that writes `outs`, if the kernel supports it; records the norm otherwise. `size`
    /// is as in [`InputNorm::can_fuse`]. The kernel also writes `x`. Later kernels may fuse the norm again.
    pub(super) fn fuse_norm(
        &mut self,
        gpu: &Gpu,
        w: &GpuMatrix,
        size: (usize, usize),
        outs: &[&GpuBuffer],
    ) -> Option<InputNorm<'a>> {
        let is_apart = |norm: &InputNorm<'_>| !outs.iter().any(|out| out.is(norm.x.buffer));
        let norm = self.norm.filter(|norm| norm.can_fuse(gpu, w, size) && is_apart(norm));
        if norm.is_none() {
            self.flush_norm(gpu);
        }
        self.is_ready = true;
        norm
    }

    /// Records the norm as a kernel of its own, unless a kernel writes `x` already.
    pub(super) fn flush_norm(&mut self, gpu: &Gpu) {
        if !self.is_ready
            && let Some(norm) = self.norm.take()
        {
            norm.record(gpu, self.x.buffer);
        }
        self.is_ready = true;
    }
}
