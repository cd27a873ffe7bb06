//! Mixture of experts: routing, and the weighted sum of the experts' outputs.

use super::kernel::{ACTIVATIONS, GpuRows, KernelSpec, check_len};
use crate::kernel_params;
use crate::op::{MoeRouteArgs, Routing};
use crate::wgpu::{Access, Bind, GpuBuffer, Recorder, WORKGROUP};

/// Maximum experts of a layer.
pub const MAX_EXPERTS: usize = 1024;

pub(super) const ROUTE: KernelSpec = KernelSpec::new::<MoeRouteParams>(
    "moe_route",
    &[Access::Read, Access::Write],
    &[ACTIVATIONS, include_str!("moe_route.wgsl")],
);
pub(super) const COMBINE: KernelSpec = KernelSpec::new::<MoeCombineParams>(
    "moe_combine",
    &[Access::Read, Access::Read, Access::Write],
    &[include_str!("moe_combine.wgsl")],
);

kernel_params! {
    struct MoeRouteParams {
        rows: u32,
        offset: u32,
        stride: u32,
        n_experts: u32,
        n_used: u32,
        normalize_top_k: u32,
    }
}

/// Routes every row of `logits`, `[T, E]`, to its `n_used` experts with the largest logits, of equal logits the lower
/// expert first. `routes` is `[T, n_used]` pairs of words: expert, and f32 weight. Weights are a softmax over all
/// logits, or over those of the chosen experts, see [`Routing`].
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn route(list: &mut Recorder, routes: &GpuBuffer, logits: GpuRows<'_>, args: MoeRouteArgs) {
    let logits = logits.checked();
    assert!(
        (args.n_used..=MAX_EXPERTS).contains(&logits.cols),
        "moe: expected {} to {MAX_EXPERTS} experts, got {}",
        args.n_used,
        logits.cols
    );
    check_len("moe", routes, 2 * logits.rows * args.n_used);
    let params = MoeRouteParams {
        rows: logits.rows as u32,
        offset: logits.offset as u32,
        stride: logits.stride as u32,
        n_experts: logits.cols as u32,
        n_used: args.n_used as u32,
        normalize_top_k: u32::from(args.routing == Routing::NormalizedTopK),
    };
    let kernel = ROUTE.kernel(list.gpu());
    let binds = [logits.buffer.into(), Bind::Buffer(routes)];
    list.dispatch_linear(&kernel, &params, binds, logits.rows);
}

kernel_params! {
    struct MoeCombineParams {
        rows: u32,
        cols: u32,
        n_used: u32,
        accumulate: u32,
    }
}

/// `out[t] = Σ_i weight[t, i] * results[t * n_used + i]`, added to `out` if `accumulate`. Shapes: `out` = `[rows, cols]`, `results` =
/// `[rows * n_used, cols]`, both packed; `routes` as [`route`] writes them.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn combine(
    list: &mut Recorder,
    out: &GpuBuffer,
    routes: &GpuBuffer,
    results: &GpuBuffer,
    ([rows, cols, n_used], accumulate): ([usize; 3], bool),
) {
    check_len("moe", out, rows * cols);
    check_len("moe", results, rows * n_used * cols);
    check_len("moe", routes, 2 * rows * n_used);
    let params = MoeCombineParams {
        rows: rows as u32,
        cols: cols as u32,
        n_used: n_used as u32,
        accumulate: u32::from(accumulate),
    };
    let groups = (rows * cols).div_ceil(WORKGROUP as usize);
    let kernel = COMBINE.kernel(list.gpu());
    let binds = [routes.into(), results.into(), Bind::Buffer(out)];
    list.dispatch_linear(&kernel, &params, binds, groups);
}
