//! Matmuls with f32 weights, see `dense.cu`.

use bytemuck::{Pod, Zeroable};
use stonechat_compute::cuda::ops::Output;
use stonechat_compute::cuda::{CommandList, Launch};
use stonechat_compute::op::{Epilogue, ExpertRoutes};

use super::ARCHIVE;
use super::matrix::CudaMatrix;
use super::params::Operand;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct DenseParams {
    weights: u64,
    x: u64,
    bias: u64,
    out: Output,
    routes: u64,
    m: u32,
    n: u32,
    k: u32,
    x_stride: u32,
    out_stride: u32,
    activation: u32,
    accumulate: u32,
    routes_per_row: u32,
}

/// Matmul with f32 weights.
pub(super) fn dense(
    list: &mut CommandList,
    out: Output,
    x: Operand,
    w: &CudaMatrix,
    epilogue: Epilogue<u64>,
) {
    let params = DenseParams::new(out, x, (w, w.n), epilogue);
    params.launch(list);
}

/// Matmul with f32 weights of experts: row i of the result has the expert of route i.
pub(super) fn dense_experts(
    list: &mut CommandList,
    out: Output,
    x: Operand,
    w: &CudaMatrix,
    args: ExpertRoutes<u64>,
) {
    let ExpertRoutes { routes, n_routes, routes_per_row, n, bias } = args;
    let x = Operand { rows: n_routes, ..x };
    let epilogue = Epilogue { bias, ..Epilogue::default() };
    let params = DenseParams {
        routes,
        routes_per_row: routes_per_row as u32,
        ..DenseParams::new(out, x, (w, n), epilogue)
    };
    params.launch(list);
}

impl DenseParams {
    /// Parameters of products with `n` rows of weights, without experts.
    fn new(out: Output, x: Operand, (w, n): (&CudaMatrix, usize), epilogue: Epilogue<u64>) -> Self {
        Self {
            weights: w.buffer.address(),
            x: x.address,
            bias: epilogue.bias.unwrap_or(0),
            out,
            routes: 0,
            m: x.rows as u32,
            n: n as u32,
            k: w.k as u32,
            x_stride: x.stride as u32,
            out_stride: n as u32,
            activation: epilogue.activation.code(),
            accumulate: u32::from(epilogue.accumulate),
            routes_per_row: 1,
        }
    }

    fn launch(&self, list: &mut CommandList) {
        let kernel = list.gpu().kernel(&ARCHIVE, "dense", "dense", 0);
        let grid = [self.n.div_ceil(8) as usize, self.m.min(65535) as usize, 1];
        list.launch(kernel, Launch { grid, threads: 256, shared_bytes: 0 }, self);
    }
}
