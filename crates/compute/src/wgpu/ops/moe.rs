//! The router of a mixture of experts, and the sum of what the experts give.

use bytemuck::{Pod, Zeroable};

use super::{ACTIVATIONS, Beside, GpuRows, Spec, check_len};
use crate::wgpu::{Access, Bind, Gpu, GpuBuffer, WORKGROUP};

/// Most experts of a layer.
pub const MAX_EXPERTS: usize = 1024;

pub(super) const ROUTE: Spec = Spec {
    name: "moe_route",
    access: &[Access::Read, Access::Write],
    workgroup: WORKGROUP,
    files: &[ACTIVATIONS, include_str!("moe_route.wgsl")],
    beside: Beside::Nothing,
};
pub(super) const COMBINE: Spec = Spec {
    name: "moe_combine",
    access: &[Access::Read, Access::Read, Access::Write],
    workgroup: WORKGROUP,
    files: &[include_str!("moe_combine.wgsl")],
    beside: Beside::Nothing,
};

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct RouteParams {
    rows: u32,
    offset: u32,
    stride: u32,
    n_experts: u32,
    n_used: u32,
    of_chosen: u32,
}

/// Chooses `n_used` experts of each row of `logits`, `[T, E]`: the largest logits, of equals the lower
/// expert. `choices` gets `[T, n_used]` pairs of words: the expert, and the bits of its weight, a softmax
/// over all logits or over the chosen ones.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn route(gpu: &Gpu, choices: &GpuBuffer, logits: GpuRows<'_>, n_used: usize, of_chosen: bool) {
    let logits = logits.checked();
    assert!(n_used <= logits.cols && logits.cols <= MAX_EXPERTS, "moe: {} experts", logits.cols);
    check_len("moe", choices, 2 * logits.rows * n_used);
    let params = RouteParams {
        rows: logits.rows as u32,
        offset: logits.offset as u32,
        stride: logits.stride as u32,
        n_experts: logits.cols as u32,
        n_used: n_used as u32,
        of_chosen: u32::from(of_chosen),
    };
    let kernel = ROUTE.kernel(gpu);
    let binds = [logits.buffer.into(), Bind::Buffer(choices)];
    gpu.record(0).dispatch_line(&kernel, &params, binds, logits.rows);
}

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct CombineParams {
    rows: u32,
    cols: u32,
    n_used: u32,
}

/// `out[t] += Σ_i weight[t, i] * results[t * n_used + i]`, `out` and `results` packed.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn combine(
    gpu: &Gpu,
    out: &GpuBuffer,
    choices: &GpuBuffer,
    results: &GpuBuffer,
    [rows, cols, n_used]: [usize; 3],
) {
    check_len("moe", out, rows * cols);
    check_len("moe", results, rows * n_used * cols);
    check_len("moe", choices, 2 * rows * n_used);
    let params = CombineParams { rows: rows as u32, cols: cols as u32, n_used: n_used as u32 };
    let groups = (rows * cols).div_ceil(WORKGROUP as usize);
    let kernel = COMBINE.kernel(gpu);
    let binds = [choices.into(), results.into(), Bind::Buffer(out)];
    gpu.record(0).dispatch_line(&kernel, &params, binds, groups);
}
