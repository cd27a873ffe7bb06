//! Activations that are the RMS norm of a row: products of one row make it themselves where they can.

use stonechat_compute::wgpu::ops::{GpuRows, norm, quantize};
use stonechat_compute::wgpu::{Access, Bind, Gpu, GpuBuffer, Source, Variant};

use super::matmul::CHUNK;
use super::matrix::GpuMatrix;

/// Longest row: workgroups keep it.
const MAX_COLS: usize = 8192;
/// Most workgroups that make the norm, each for itself: as many as a large GPU runs at a time.
const MAX_GROUPS: usize = 1024;

/// What activations are the norm of.
#[derive(Debug, Clone, Copy)]
pub struct Normed<'a> {
    /// Rows before the norm.
    pub x: GpuRows<'a>,
    /// `[K]`.
    pub weight: &'a GpuBuffer,
    /// Added to the mean of the squares.
    pub eps: f32,
}

impl Normed<'_> {
    /// Records the norm alone, into `out`.
    pub fn record(self, gpu: &Gpu, out: &GpuBuffer) {
        norm::rms_norm(gpu, out, self.x, self.weight, (self.eps, false));
    }

    /// Whether a kernel of `n_groups` workgroups and `n_buffers` other buffers can make it for a product with `w`.
    pub(super) fn joins(
        &self,
        gpu: &Gpu,
        w: &GpuMatrix,
        (n_groups, n_buffers): (usize, usize),
    ) -> bool {
        gpu.variant() == Variant::Subgroups
            && self.x.rows == 1
            && self.x.offset.is_multiple_of(4)
            && self.x.cols == w.k()
            && w.format.has_codes
            && w.k().is_multiple_of(quantize::GROUP_LEN)
            && w.k() == w.padded_k()
            && w.k() <= MAX_COLS
            && w.parts.len() == 1
            && n_groups <= MAX_GROUPS
            && n_buffers + 2 <= gpu.max_buffers()
    }
}

/// `access` of a kernel, and that of a norm's weights and of what it gives, two more.
pub(super) const fn normed_access<const N: usize>(access: &[Access]) -> [Access; N] {
    Access::joined(access, &[Access::Read, Access::Write])
}

/// `binds` of a kernel, and what [`normed_access`] adds.
pub(super) fn normed_binds<'a, const N: usize>(
    binds: &[Bind<'a>],
    normed: Normed<'a>,
    out: &'a GpuBuffer,
) -> [Bind<'a>; N] {
    let mut all = [Bind::Buffer(normed.weight); N];
    all[..binds.len()].copy_from_slice(binds);
    all[N - 1] = Bind::Buffer(out);
    all
}

/// Appends what makes the norm of a row of `k` values in a kernel of `n_buffers` other buffers; `has_writer` if
/// that quantizes its results.
pub(super) fn with_norm(
    source: Source,
    k: u32,
    (workgroup, n_buffers): (u32, usize),
    has_writer: bool,
) -> Source {
    let chunks = k / CHUNK as u32;
    let source = source
        .constant("NORM_WEIGHT", n_buffers as u32 + 1)
        .constant("NORM_OUT", n_buffers as u32 + 2)
        .constant("CHUNKS", chunks)
        .constant("STEPS", chunks.div_ceil(workgroup))
        .file(include_str!("codes_normed.wgsl"));
    if has_writer { source } else { source.file(quantize::VALUES) }
}

/// Activations of products, which are there or still to be made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Input<'a> {
    pub(super) x: GpuRows<'a>,
    normed: Option<Normed<'a>>,
    is_there: bool,
}

impl<'a> Input<'a> {
    /// `x` as it is, or, where it is the norm of something, once that was made.
    pub(super) fn new(x: GpuRows<'a>, normed: Option<Normed<'a>>) -> Self {
        Self { x, normed, is_there: normed.is_none() }
    }

    /// What a kernel that writes `outs` is to make the norm of, if it can; else the activations are there from
    /// now on.
    pub(super) fn joined(
        &mut self,
        gpu: &Gpu,
        w: &GpuMatrix,
        size: (usize, usize),
        outs: &[&GpuBuffer],
    ) -> Option<Normed<'a>> {
        let is_apart = |n: &Normed<'_>| !outs.iter().any(|out| out.is(n.x.buffer));
        let normed = self.normed.filter(|n| n.joins(gpu, w, size) && is_apart(n));
        if normed.is_none() {
            self.make(gpu);
        }
        // Who makes it stores it too.
        self.is_there = true;
        normed
    }

    /// Makes the activations if they are not there.
    pub(super) fn make(&mut self, gpu: &Gpu) {
        if !self.is_there
            && let Some(normed) = self.normed.take()
        {
            // No product makes it again.
            normed.record(gpu, self.x.buffer);
        }
        self.is_there = true;
    }
}
