//! QK norm and rotary embedding of heads, fused with the KV write.

use bytemuck::{Pod, Zeroable};

use super::kv::{KvParams, Pool, padded_dim};
use super::{Rows, launch};
use crate::cuda::CommandList;
use crate::op::{KvDType, RopeArgs, RopePairs, Rotation};

/// Maximum channels of a head.
pub const MAX_HEAD_DIM: usize = 1024;

/// Rows of a block of the KV write without rotation.
const WRITE_ROWS: usize = 64;

/// Heads that are normed and rotated.
#[derive(Debug, Clone, Copy)]
pub struct Heads {
    /// `[T, H*C]`.
    pub x: Rows,
    /// Address of the packed result, 0: not written.
    pub out: u64,
    /// Norm and rotation.
    pub args: RopeArgs<u64>,
}

/// KV write: rows of values, pool, pages and slots.
#[derive(Debug, Clone, Copy)]
pub struct Write<'a> {
    /// Values `[T, G*C]`.
    pub v: Rows,
    /// KV cache of the layer.
    pub pool: &'a Pool,
    /// Address of the pairs of page and slot.
    pub slots: u64,
}

#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
struct HeadsParams {
    x: u64,
    out: u64,
    weight: u64,
    n_heads: u32,
    stride: u32,
    out_stride: u32,
    eps: f32,
}

impl HeadsParams {
    fn new(heads: Option<Heads>) -> Self {
        let Some(Heads { x, out, args }) = heads else { return Self::default() };
        let (weight, eps) = args.norm.unwrap_or_default();
        Self {
            x: x.address,
            out,
            weight,
            n_heads: (x.cols / args.head_dim) as u32,
            stride: x.stride as u32,
            out_stride: x.cols as u32,
            eps,
        }
    }
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct RopeKvParams {
    q: HeadsParams,
    k: HeadsParams,
    v: u64,
    table: u64,
    positions: u64,
    slots: u64,
    kv: KvParams,
    n_rows: u32,
    head_dim: u32,
    n_rot: u32,
    is_adjacent: u32,
    v_stride: u32,
    has_k: u32,
}

/// Rotation of heads of queries and keys, and the write of keys and values.
#[derive(Debug, Clone, Copy)]
pub struct RopeKv<'a> {
    /// Queries.
    pub q: Option<Heads>,
    /// Keys, with the width of a head and the rotation of the queries.
    pub k: Option<Heads>,
    /// Address of the positions, which a rotation reads.
    pub positions: u64,
    /// Write of the keys and of values.
    pub write: Option<Write<'a>>,
}

impl RopeKv<'_> {
    pub(super) fn params(&self) -> RopeKvParams {
        let &Self { q, k, positions, write } = self;
        let RopeArgs { head_dim, rotation, .. } = self.first().args;
        assert!(head_dim <= MAX_HEAD_DIM, "rope: heads of {head_dim}, at most {MAX_HEAD_DIM}");
        let is_adjacent = |rotation: Rotation<u64>| rotation.pairs == RopePairs::Adjacent;
        RopeKvParams {
            q: HeadsParams::new(q),
            k: HeadsParams::new(k),
            v: write.map_or(0, |write| write.v.address),
            table: rotation.map_or(0, |rotation| rotation.table),
            positions,
            slots: write.map_or(0, |write| write.slots),
            kv: write.map_or_else(KvParams::zeroed, |write| write.pool.params()),
            n_rows: self.first().x.rows as u32,
            head_dim: head_dim as u32,
            n_rot: rotation.map_or(0, |rotation| rotation.n_rot) as u32,
            is_adjacent: u32::from(rotation.is_none_or(is_adjacent)),
            v_stride: write.map_or(0, |write| write.v.stride) as u32,
            has_k: u32::from(k.is_some()),
        }
    }

    /// Whether it only writes many keys and values, to pages of f16.
    fn is_plain_write(&self) -> bool {
        let RopeArgs { head_dim, rotation, .. } = self.first().args;
        let is_whole =
            |x: Rows| (x.stride | head_dim).is_multiple_of(4) && x.address.is_multiple_of(16);
        let writes = |write: Write<'_>| {
            let layout = write.pool.layout();
            is_whole(write.v) && layout.dtype == KvDType::F16 && padded_dim(layout.head_dim) <= 128
        };
        let is_plain = |k: Heads| {
            k.out == 0 && k.args.norm.is_none() && k.x.rows >= WRITE_ROWS && is_whole(k.x)
        };
        self.q.is_none()
            && rotation.is_none()
            && self.k.is_some_and(is_plain)
            && self.write.is_some_and(writes)
    }

    fn first(&self) -> Heads {
        self.q.or(self.k).expect("heads")
    }
}

/// Norms and rotates heads of queries and keys; writes keys and values.
///
/// # Panics
/// If heads are too wide, or no rows are given.
pub fn rope_kv(list: &mut CommandList, args: RopeKv<'_>) {
    let params = args.params();
    let [n_rows, n_heads, n_keys] =
        [params.n_rows, params.q.n_heads, params.k.n_heads].map(|n| n as usize);
    if args.is_plain_write() {
        let grid = [n_rows.div_ceil(WRITE_ROWS), n_keys, 1];
        return launch(list, ("rope", "write_kv"), grid, 256, &params);
    }
    let n_warps = n_heads + n_keys + if args.write.is_some() { n_keys } else { 0 };
    launch(list, ("rope", "rope_kv"), [n_rows, n_warps.div_ceil(8), 1], 256, &params);
}
