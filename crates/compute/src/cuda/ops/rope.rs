//! QK norm and rotary embedding of heads, fused with the KV write.

use bytemuck::{Pod, Zeroable};

use super::kv::{KvParams, Pool};
use super::{Rows, launch};
use crate::cpu::RopePairs;
use crate::cuda::CommandList;

/// Widest head.
pub const MAX_HEAD_DIM: usize = 1024;

/// Heads that are normed and rotated.
#[derive(Debug, Clone, Copy)]
pub struct Heads {
    /// `[T, H*C]`.
    pub x: Rows,
    /// Address of the packed result, 0: not written.
    pub out: u64,
    /// Address of the weights of the QK norm, 0 without one, and its epsilon.
    pub norm: (u64, f32),
}

/// Rotation of heads.
#[derive(Debug, Clone, Copy)]
pub struct Rotation {
    /// Address of the table `[n_ctx, R]`, 0: no rotation.
    pub table: u64,
    /// Address of the positions.
    pub positions: u64,
    /// Rotated channels `R`.
    pub n_rot: usize,
    /// Pairing of channels.
    pub pairs: RopePairs,
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
    fn new(heads: Option<Heads>, head_dim: usize) -> Self {
        let Some(Heads { x, out, norm: (weight, eps) }) = heads else { return Self::default() };
        Self {
            x: x.address,
            out,
            weight,
            n_heads: (x.cols / head_dim) as u32,
            stride: x.stride as u32,
            out_stride: x.cols as u32,
            eps,
        }
    }
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct RopeKvParams {
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

/// Norms and rotates heads of queries and keys; writes keys and values.
///
/// # Panics
/// If heads are too wide, or no rows are given.
pub fn rope_kv(
    list: &mut CommandList,
    (q, k): (Option<Heads>, Option<Heads>),
    head_dim: usize,
    rotation: Rotation,
    write: Option<Write<'_>>,
) {
    assert!(head_dim <= MAX_HEAD_DIM, "rope: heads of {head_dim}, at most {MAX_HEAD_DIM}");
    let x = q.or(k).expect("heads").x;
    let n_heads = |heads: Option<Heads>| heads.map_or(0, |heads| heads.x.cols / head_dim);
    let n_warps = n_heads(q) + n_heads(k) + if write.is_some() { n_heads(k) } else { 0 };
    let params = RopeKvParams {
        q: HeadsParams::new(q, head_dim),
        k: HeadsParams::new(k, head_dim),
        v: write.map_or(0, |write| write.v.address),
        table: rotation.table,
        positions: rotation.positions,
        slots: write.map_or(0, |write| write.slots),
        kv: write.map_or_else(KvParams::zeroed, |write| write.pool.params()),
        n_rows: x.rows as u32,
        head_dim: head_dim as u32,
        n_rot: rotation.n_rot as u32,
        is_adjacent: u32::from(rotation.pairs == RopePairs::Adjacent),
        v_stride: write.map_or(0, |write| write.v.stride) as u32,
        has_k: u32::from(k.is_some()),
    };
    launch(list, ("rope", "rope_kv"), [x.rows, n_warps.div_ceil(8), 1], 256, &params);
}
