//! Matmuls with the weights of experts.

use stonechat_compute::cuda::ops::Output;
use stonechat_compute::cuda::ops::moe::ExpertOrder;
use stonechat_compute::cuda::{CommandList, Gpu};
use stonechat_compute::op::ExpertRoutes;

use super::dense::dense_experts;
use super::format::Formats;
use super::gemv::{GemvWork, block_rows, launch_gemv};
use super::matrix::{CudaMatrix, PANEL_ROWS};
use super::params::{MatmulParams, MatrixParams, Operand, Scratch};

/// Maximum routes of an expert block: the rows that a block of threads of every matrix has.
#[must_use]
pub fn expert_block_len(
    gpu: &Gpu,
    matrices: &[&CudaMatrix],
    (n_routes, n_experts): (usize, usize),
) -> usize {
    let len = match n_routes.div_ceil(n_experts) {
        0..=8 => 8,
        9..=32 => 32,
        _ => 64,
    };
    let formats = matrices.iter().filter_map(|w| w.format());
    formats.map(|format| block_rows(gpu.device().into(), format, len)).min().unwrap_or(len)
}

/// Multiplies rows with their experts: a row for each route of f32 values.
pub fn matmul_experts(
    list: &mut CommandList,
    scratch: &mut dyn Scratch,
    out: u64,
    x: Operand,
    w: &CudaMatrix,
    (args, order): (ExpertRoutes<u64>, ExpertOrder),
) {
    let ExpertRoutes { routes_per_row, n, bias, .. } = args;
    let out = Output::at(out);
    let Some(format) = w.format() else { return dense_experts(list, out, x, w, args) };
    let mut params = MatmulParams::new(w, format, x);
    params.matrices[0] = MatrixParams {
        n: n as u32,
        out_stride: n as u32,
        ..MatrixParams::new(w, out, bias.unwrap_or(0))
    };
    params.n_matrices = 1;
    params.order = order.order;
    params.blocks = order.blocks;
    params.routes_per_row = routes_per_row as u32;
    // An expert may begin within a panel.
    let panels = if n.is_multiple_of(PANEL_ROWS) { n / PANEL_ROWS } else { n / PANEL_ROWS + 2 };
    let work = GemvWork::of_rows(order.block_len, w.k, panels);
    let work = GemvWork { n_expert_blocks: Some(order.n_blocks), ..work };
    launch_gemv(list, scratch, Formats::one(format), params, work);
}
