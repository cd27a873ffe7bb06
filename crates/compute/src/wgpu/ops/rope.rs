//! QK norm and rotary embedding of heads, in place: one workgroup a head. [`rope_and_write`] fuses those of queries and
//! keys with the KV write.

use super::{CopyWriter, GpuRows, KernelSpec, check_len, kernel_source, kv};
use crate::cpu::{KvDType, KvRow, RopePairs};
use crate::kernel_params;
use crate::wgpu::{Access, Bind, Gpu, GpuBuffer, KernelParams, Source, Variant, WORKGROUP};

/// Widest head.
pub const MAX_HEAD_DIM: usize = 1024;

pub(super) const SPEC: KernelSpec = KernelSpec {
    name: "rope",
    params: RopeParams::LAYOUT,
    access: &[Access::Write, Access::Read, Access::Read],
    workgroup: WORKGROUP,
    files: &[include_str!("rotate.wgsl"), include_str!("rope.wgsl")],
    copy_writer: CopyWriter::None,
};

/// Arguments of [`rope`].
#[derive(Debug, Clone, Copy)]
pub struct Rope<'a> {
    /// Width of a head `C`.
    pub head_dim: usize,
    /// RMS norm of the head before the rotation: weight `[C]` and epsilon.
    pub norm: Option<(&'a GpuBuffer, f32)>,
    /// Cosines and sines `[T, R]`, number of rotated channels `R`, and the pairing of channels.
    pub rotation: Option<(&'a GpuBuffer, usize, RopePairs)>,
}

impl Rope<'_> {
    /// Whether queries and keys can share [`rope_and_write`]: equal head width and rotation.
    #[must_use]
    pub fn is_compatible(&self, other: &Self) -> bool {
        let same_angles = match (self.rotation, other.rotation) {
            (Some((a, n, pairs)), Some((b, m, other))) => a.is(b) && n == m && pairs == other,
            (None, None) => true,
            _ => false,
        };
        self.head_dim == other.head_dim && same_angles
    }

    fn angles(&self) -> Option<&GpuBuffer> {
        self.rotation.map(|(cos_sin, ..)| cos_sin)
    }

    fn weight(&self) -> Option<&GpuBuffer> {
        self.norm.map(|(weight, _)| weight)
    }

    /// Checks the shapes; returns the number of heads in `x`.
    #[track_caller]
    fn check(&self, x: GpuRows<'_>) -> usize {
        let Self { head_dim, norm, rotation } = *self;
        assert!(head_dim <= MAX_HEAD_DIM && x.cols.is_multiple_of(head_dim), "rope: heads");
        norm.inspect(|(weight, _)| check_len("rope", weight, head_dim));
        let n_rot = rotation.map_or(0, |(_, n_rot, _)| n_rot);
        assert!(n_rot <= head_dim, "rope: {n_rot} of {head_dim} channels");
        rotation.inspect(|(cos_sin, ..)| check_len("rope", cos_sin, x.rows * n_rot));
        x.cols / head_dim
    }

    fn params(&self) -> Rotation {
        Rotation {
            n_rot: self.rotation.map_or(0, |(_, n_rot, _)| n_rot) as u32,
            is_adjacent: u32::from(matches!(self.rotation, Some((.., RopePairs::Adjacent)))),
            has_norm: u32::from(self.norm.is_some()),
            eps: self.norm.map_or(0.0, |(_, eps)| eps),
        }
    }
}

kernel_params! {
    struct Rotation {
        n_rot: u32,
        is_adjacent: u32,
        has_norm: u32,
        eps: f32,
    }
}

kernel_params! {
    struct RopeParams {
        rotation: Rotation,
        rows: u32,
        n_heads: u32,
        head_dim: u32,
        offset: u32,
        stride: u32,
    }
}

/// Normalizes and rotates the heads of `x`, `[T, H*C]`, in place.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn rope(gpu: &Gpu, x: GpuRows<'_>, args: Rope<'_>) {
    let x = x.checked();
    let n_heads = args.check(x);
    let params = RopeParams {
        rotation: args.params(),
        rows: x.rows as u32,
        n_heads: n_heads as u32,
        head_dim: args.head_dim as u32,
        offset: x.offset as u32,
        stride: x.stride as u32,
    };
    let binds = [Bind::Buffer(x.buffer), args.weight().into(), args.angles().into()];
    gpu.record(0).dispatch_linear(&SPEC.kernel(gpu), &params, binds, x.rows * n_heads);
}

kernel_params! {
    struct RopeKvParams {
        q_rotation: Rotation,
        k_rotation: Rotation,
        rows: u32,
        n_heads: u32,
        n_kv_heads: u32,
        head_dim: u32,
        row_words: u32,
        head_words: u32,
        page_words: u32,
        q_offset: u32,
        q_stride: u32,
        k_offset: u32,
        k_stride: u32,
        v_offset: u32,
        v_stride: u32,
        slots: u32,
        stores_per_head: u32,
    }
}

const WRITE: &[Access] = &[
    Access::Read,
    Access::Write,
    Access::Write,
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Write,
];

fn write_source(dtype: KvDType, variant: Variant) -> Source {
    let name = format!("rope_kv-{}-{}", kv::dtype_name(dtype), variant.name());
    let source = kernel_source(name, RopeKvParams::LAYOUT, WRITE, variant, WORKGROUP)
        .file(include_str!("rotate.wgsl"))
        .file(include_str!("rope_kv.wgsl"));
    kv::with_store(source, dtype)
}

pub(super) fn sources(variant: Variant) -> Vec<Source> {
    [KvDType::F32, KvDType::F16, KvDType::Q8_0].map(|dtype| write_source(dtype, variant)).into()
}

/// [`rope`] of queries and keys, then [`kv::write`] of the keys and `v`, in one kernel.
///
/// # Panics
/// As those, and if the rotations are not [compatible](Rope::is_compatible).
#[track_caller]
pub fn rope_and_write(
    gpu: &Gpu,
    (q, q_args): (GpuRows<'_>, Rope<'_>),
    (k, k_args): (GpuRows<'_>, Rope<'_>),
    v: GpuRows<'_>,
    (pool, rows): (&kv::GpuKvPool, &[KvRow]),
) {
    let (q, k, v) = (q.checked(), k.checked(), v.checked());
    let n_heads = q_args.check(q);
    let n_kv_heads = k_args.check(k);
    assert!(q_args.is_compatible(&k_args), "rope: queries and keys have different rotations");
    let layout = pool.layout();
    let shape = (layout.n_kv_heads, layout.head_dim);
    assert_eq!((n_kv_heads, k_args.head_dim), shape, "rope: heads of the keys");
    assert_eq!(q.rows, k.rows, "rope: rows of the queries and of the keys");
    let (words, stores_per_head, data) = kv::check_write(pool, k, v, rows);
    let mut record = gpu.record(data.len());
    let params = RopeKvParams {
        q_rotation: q_args.params(),
        k_rotation: k_args.params(),
        rows: q.rows as u32,
        n_heads: n_heads as u32,
        n_kv_heads: n_kv_heads as u32,
        head_dim: layout.head_dim as u32,
        row_words: words.row as u32,
        head_words: words.head as u32,
        page_words: words.page as u32,
        q_offset: q.offset as u32,
        q_stride: q.stride as u32,
        k_offset: k.offset as u32,
        k_stride: k.stride as u32,
        v_offset: v.offset as u32,
        v_stride: v.stride as u32,
        slots: record.push_data(&data),
        stores_per_head: stores_per_head as u32,
    };
    let dtype = layout.dtype;
    let kernel = gpu.kernel(("rope_kv", [kv::elements_per_word(dtype) as u32, 0, 0, 0]), || {
        write_source(dtype, gpu.variant())
    });
    let binds = [
        Bind::Data,
        Bind::Buffer(q.buffer),
        Bind::Buffer(k.buffer),
        v.buffer.into(),
        q_args.weight().into(),
        k_args.weight().into(),
        q_args.angles().into(),
        Bind::Buffer(&pool.buffer),
    ];
    record.dispatch(&kernel, &params, binds, [q.rows as u32, (n_heads + n_kv_heads) as u32, 1]);
}
