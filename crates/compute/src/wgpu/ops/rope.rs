//! QK norm and rotary embedding of heads, in place: one workgroup per head. [`rope_and_write`] fuses those of queries and
//! keys with the KV write.

use super::kernel::{GpuRows, KernelSpec, check_len, kernel_source};
use super::kv;
use crate::kernel_params;
use crate::op::{KvDType, RopeArgs, RopePairs, Rotation};
use crate::wgpu::{Access, Bind, GpuBuffer, KernelParams, Recorder, Source, Variant, WORKGROUP};
use crate::{check_at_most, check_eq, check_multiple};

/// Maximum channels of a head.
pub const MAX_HEAD_DIM: usize = 1024;

pub(super) const SPEC: KernelSpec = KernelSpec::new::<RopeParams>(
    "rope",
    &[Access::Read, Access::Write, Access::Read, Access::Read],
    &[include_str!("rotate.wgsl"), include_str!("rope.wgsl")],
);

impl<'a> RopeArgs<&'a GpuBuffer> {
    fn table(&self) -> Option<&'a GpuBuffer> {
        self.rotation.map(|rotation| rotation.table)
    }

    fn weight(&self) -> Option<&'a GpuBuffer> {
        self.norm.map(|(weight, _)| weight)
    }

    /// Checks the shapes; returns the number of heads in `x`.
    #[track_caller]
    fn check(&self, x: GpuRows<'_>) -> usize {
        let Self { head_dim, norm, rotation } = *self;
        check_at_most!(head_dim, MAX_HEAD_DIM, "rope: head_dim");
        check_multiple!(x.cols, head_dim, "rope: columns by head_dim");
        norm.inspect(|(weight, _)| check_len("rope", weight, head_dim));
        if let Some(Rotation { n_rot, .. }) = rotation {
            check_at_most!(n_rot, head_dim, "rope: rotated channels");
        }
        x.cols / head_dim
    }

    fn params(&self) -> RotationParams {
        let is_adjacent = |rotation: Rotation<_>| rotation.pairs == RopePairs::Adjacent;
        RotationParams {
            n_rot: self.rotation.map_or(0, |rotation| rotation.n_rot) as u32,
            is_adjacent: u32::from(self.rotation.is_some_and(is_adjacent)),
            has_norm: u32::from(self.norm.is_some()),
            eps: self.norm.map_or(0.0, |(_, eps)| eps),
        }
    }
}

kernel_params! {
    struct RotationParams {
        n_rot: u32,
        is_adjacent: u32,
        has_norm: u32,
        eps: f32,
    }
}

kernel_params! {
    struct RopeParams {
        rotation: RotationParams,
        rows: u32,
        n_heads: u32,
        head_dim: u32,
        offset: u32,
        stride: u32,
        positions: u32,
    }
}

/// Normalizes and rotates the heads of `x`, `[T, H*C]`, in place. The positions of the rows are inputs of the step, from word
/// `positions` on; not read without a rotation.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn rope(list: &mut Recorder, x: GpuRows<'_>, args: RopeArgs<&GpuBuffer>, positions: usize) {
    let x = x.checked();
    let n_heads = args.check(x);
    let kernel = SPEC.kernel(list.gpu());
    let params = RopeParams {
        rotation: args.params(),
        rows: x.rows as u32,
        n_heads: n_heads as u32,
        head_dim: args.head_dim as u32,
        offset: x.offset as u32,
        stride: x.stride as u32,
        positions: positions as u32,
    };
    let binds = [Bind::Step, Bind::Buffer(x.buffer), args.weight().into(), args.table().into()];
    list.dispatch_linear(&kernel, &params, binds, x.rows * n_heads);
}

kernel_params! {
    struct RopeKvParams {
        q_rotation: RotationParams,
        k_rotation: RotationParams,
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
        positions: u32,
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

/// [`rope`] of queries and keys, which have one rotation, then [`kv::write`] of the keys and `v`, in one kernel. The positions
/// and the slots of the rows are inputs of the step, from words `positions` and `slots` on.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn rope_and_write(
    list: &mut Recorder,
    (q, q_args): (GpuRows<'_>, RopeArgs<&GpuBuffer>),
    (k, k_args): (GpuRows<'_>, RopeArgs<&GpuBuffer>),
    v: GpuRows<'_>,
    pool: &kv::GpuKvPool,
    [positions, slots]: [usize; 2],
) {
    let (q, k, v) = (q.checked(), k.checked(), v.checked());
    let n_heads = q_args.check(q);
    let n_kv_heads = k_args.check(k);
    let layout = pool.layout();
    let shape = (layout.n_kv_heads, layout.head_dim);
    check_eq!((n_kv_heads, k_args.head_dim), shape, "rope: heads of the keys");
    check_eq!(k.rows, q.rows, "rope: rows of the keys");
    let (words, stores_per_head) = kv::check_write(pool, k, v);
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
        positions: positions as u32,
        slots: slots as u32,
        stores_per_head: stores_per_head as u32,
    };
    let dtype = layout.dtype;
    let variant = list.gpu().variant();
    let key = [kv::elements_per_word(dtype) as u32, 0, 0, 0];
    let kernel = list.gpu().kernel(("rope_kv", key), || write_source(dtype, variant));
    let binds = [
        Bind::Step,
        Bind::Buffer(q.buffer),
        Bind::Buffer(k.buffer),
        v.buffer.into(),
        q_args.weight().into(),
        k_args.weight().into(),
        q_args.table().into(),
        Bind::Buffer(&pool.buffer),
    ];
    list.dispatch(&kernel, &params, binds, [q.rows as u32, (n_heads + n_kv_heads) as u32, 1]);
}
