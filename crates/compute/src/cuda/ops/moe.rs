//! Mixture of experts: routing, routes sorted by expert, weighted sum of results.

use bytemuck::{Pod, Zeroable};

use super::{Rows, launch, launch_elements};
use crate::cuda::CommandList;
use crate::op::{MoeRouteArgs, Routing};

/// Maximum experts of a layer.
pub const MAX_EXPERTS: usize = 1024;

const MODULE: &str = "moe";

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct RouteParams {
    logits: u64,
    routes: u64,
    n_rows: u32,
    stride: u32,
    n_experts: u32,
    n_used: u32,
    normalize_top_k: u32,
    unused: u32,
}

/// Routes every row of `logits`, `[T, E]`, to its `n_used` experts with the largest logits, of equal logits the lower expert
/// first. `routes`: address of `[T, n_used]` pairs of words, expert and f32 weight. Weights are a softmax over all logits, or
/// over those of the chosen experts, see [`Routing`].
///
/// # Panics
/// If there are too many experts.
pub fn route(list: &mut CommandList, routes: u64, logits: Rows, args: MoeRouteArgs) {
    assert!(logits.cols <= MAX_EXPERTS, "moe: {} experts", logits.cols);
    let params = RouteParams {
        logits: logits.address,
        routes,
        n_rows: logits.rows as u32,
        stride: logits.stride as u32,
        n_experts: logits.cols as u32,
        n_used: args.n_used as u32,
        normalize_top_k: u32::from(args.routing == Routing::NormalizedTopK),
        unused: 0,
    };
    launch(list, (MODULE, "moe_route"), [logits.rows, 1, 1], 32, &params);
}

/// Routes sorted by expert, in blocks of one expert each.
#[derive(Debug, Clone, Copy)]
pub struct ExpertOrder {
    /// Address of the sorted routes.
    pub order: u64,
    /// Address of the blocks: expert, first index, number.
    pub blocks: u64,
    /// Maximum number of blocks.
    pub n_blocks: usize,
    /// Maximum routes of a block.
    pub block_len: usize,
}

impl ExpertOrder {
    /// Maximum number of blocks of `n_routes` routes.
    #[must_use]
    pub fn max_blocks(n_routes: usize, n_experts: usize, block_len: usize) -> usize {
        n_routes.min(n_experts + n_routes / block_len)
    }
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct SortParams {
    routes: u64,
    order: u64,
    blocks: u64,
    n_routes: u32,
    n_experts: u32,
    block_len: u32,
    n_blocks: u32,
}

/// Sorts `n_routes` routes by expert.
pub fn sort(
    list: &mut CommandList,
    routes: u64,
    (n_routes, n_experts): (usize, usize),
    to: ExpertOrder,
) {
    let params = SortParams {
        routes,
        order: to.order,
        blocks: to.blocks,
        n_routes: n_routes as u32,
        n_experts: n_experts as u32,
        block_len: to.block_len as u32,
        n_blocks: to.n_blocks as u32,
    };
    launch(list, (MODULE, "moe_sort"), [1, 1, 1], 1024, &params);
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct CombineParams {
    routes: u64,
    results: u64,
    out: u64,
    n_rows: u32,
    cols: u32,
    n_used: u32,
    accumulate: u32,
}

/// `out[t] = Σ_i weight[t, i] * results[t * n_used + i]`, added to `out` if `accumulate`; all packed.
pub fn combine(
    list: &mut CommandList,
    out: u64,
    (routes, results): (u64, u64),
    [rows, cols, n_used]: [usize; 3],
    accumulate: bool,
) {
    let params = CombineParams {
        routes,
        results,
        out,
        n_rows: rows as u32,
        cols: cols as u32,
        n_used: n_used as u32,
        accumulate: u32::from(accumulate),
    };
    launch_elements(list, MODULE, "moe_combine", rows * cols, &params);
}
