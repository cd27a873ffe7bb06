//! Norm and rotation of heads, in place: a workgroup a head. For few rows, that of queries and keys and the
//! storing of keys and values are one kernel.

use bytemuck::{Pod, Zeroable};

use super::{Beside, GpuRows, Spec, check_len, kv, start};
use crate::cpu::{KvDType, KvRow, RopePairs};
use crate::wgpu::{Access, Bind, Gpu, GpuBuffer, Source, Variant, WORKGROUP};

/// Widest head.
pub const MAX_HEAD_DIM: usize = 1024;

pub(super) const SPEC: Spec = Spec {
    name: "rope",
    access: &[Access::Write, Access::Read, Access::Read],
    workgroup: WORKGROUP,
    files: &[include_str!("rotate.wgsl"), include_str!("rope.wgsl")],
    beside: Beside::Nothing,
};

/// What [`rope`] does to each head.
#[derive(Debug, Clone, Copy)]
pub struct Rope<'a> {
    /// Width of a head `C`.
    pub head_dim: usize,
    /// RMS norm before the rotation: weight `[C]` and epsilon.
    pub norm: Option<(&'a GpuBuffer, f32)>,
    /// Cosines and sines `[T, R]`, `R`, and which channels form a pair.
    pub rotation: Option<(&'a GpuBuffer, usize, RopePairs)>,
}

impl Rope<'_> {
    /// Whether one kernel can do both: what is not of one head is the same.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
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

    /// The number of heads in `x`.
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

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Rotation {
    n_rot: u32,
    is_adjacent: u32,
    has_norm: u32,
    eps: f32,
}

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    rotation: Rotation,
    rows: u32,
    n_heads: u32,
    head_dim: u32,
    offset: u32,
    stride: u32,
}

/// Norms and rotates the heads of `x`, `[T, H*C]`.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn rope(gpu: &Gpu, x: GpuRows<'_>, args: Rope<'_>) {
    let x = x.checked();
    let n_heads = args.check(x);
    let params = Params {
        rotation: args.params(),
        rows: x.rows as u32,
        n_heads: n_heads as u32,
        head_dim: args.head_dim as u32,
        offset: x.offset as u32,
        stride: x.stride as u32,
    };
    let binds = [Bind::Buffer(x.buffer), args.weight().into(), args.angles().into()];
    gpu.record(0).dispatch_line(&SPEC.kernel(gpu), &params, binds, x.rows * n_heads);
}

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct WriteParams {
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
    units: u32,
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
    let source = start(name, WRITE, variant, WORKGROUP)
        .file(include_str!("rotate.wgsl"))
        .file(include_str!("rope_kv.wgsl"));
    kv::with_store(source, dtype)
}

pub(super) fn sources(variant: Variant) -> Vec<Source> {
    [KvDType::F32, KvDType::F16, KvDType::Q8_0].map(|dtype| write_source(dtype, variant)).into()
}

/// [`rope`] of queries and of keys, and then [`kv::write`] of the keys and of `v`, by one kernel.
///
/// # Panics
/// As those, and if one rotation is not [like](Rope::is_like) the other.
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
    assert!(q_args.is_like(&k_args), "rope: queries and keys are not rotated alike");
    let layout = pool.layout();
    let shape = (layout.n_kv_heads, layout.head_dim);
    assert_eq!((n_kv_heads, k_args.head_dim), shape, "rope: heads of the keys");
    assert_eq!(q.rows, k.rows, "rope: rows of the queries and of the keys");
    let (words, units, data) = kv::prepare(pool, k, v, rows);
    let mut record = gpu.record(data.len());
    let params = WriteParams {
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
        slots: record.words(&data),
        units: units as u32,
    };
    let dtype = layout.dtype;
    let kernel = gpu.kernel(("rope_kv", [kv::elements(dtype) as u32, 0, 0, 0]), || {
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
