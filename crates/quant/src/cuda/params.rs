//! Operands and parameters of matmuls, see `params.cuh`.

use bytemuck::{Pod, Zeroable};
use stonechat_compute::Result;
use stonechat_compute::cuda::ops::{OPERAND_COLUMNS, Output};
use stonechat_compute::cuda::{CommandList, Kernel, Launch, TensorMap};
use stonechat_compute::op::InputNorm;

use super::format::Format;
use super::matrix::{CudaMatrix, PANEL_ROWS};

/// Maximum matrices of a launch.
pub const MAX_GROUP: usize = 3;

/// Scratch memory, shared by the kernels of an op.
pub trait Scratch {
    /// Address of at least `bytes` bytes, zeros at first; 0 if there are none.
    fn get(&mut self, name: &'static str, bytes: usize) -> u64;
}

/// Left operand of a matmul: f16 in operand order, or f32 for f32 weights.
#[derive(Debug, Clone, Copy)]
pub struct Operand {
    /// Address of the first value.
    pub address: u64,
    /// Number of rows.
    pub rows: usize,
    /// Values from one row to the next, for f32.
    pub stride: usize,
    /// RMS norm of one row of f32 values before the product.
    pub norm: Option<InputNorm<u64>>,
}

#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct MatrixParams {
    pub(super) weights: u64,
    pub(super) bias: u64,
    pub(super) out: Output,
    pub(super) n: u32,
    pub(super) out_stride: u32,
}

#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct MatmulParams {
    pub(super) matrices: [MatrixParams; MAX_GROUP],
    pub(super) x: u64,
    pub(super) order: u64,
    pub(super) blocks: u64,
    pub(super) m: u32,
    pub(super) k_tiles: u32,
    pub(super) n_chunks: u32,
    pub(super) x_stride: u32,
    pub(super) n_matrices: u32,
    pub(super) activation: u32,
    pub(super) accumulate: u32,
    pub(super) is_gated: u32,
    pub(super) alpha: f32,
    pub(super) limit: f32,
    pub(super) routes_per_row: u32,
    pub(super) cols: u32,
    pub(super) row: u64,
    pub(super) norm_weight: u64,
    pub(super) normed: u64,
    pub(super) eps: f32,
    pub(super) block_panels: u32,
    pub(super) n_stages: u32,
    pub(super) n_splits: u32,
    pub(super) partials: u64,
    pub(super) counters: u64,
    pub(super) n_first_matrices: u32,
    pub(super) n_first_blocks: u32,
}

/// Words of padding after parameters with a tensor map, up to its alignment.
const PADDING: usize = 8 - size_of::<MatmulParams>() / 8 % 8;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct WarpgroupParams {
    x: TensorMap,
    matmul: MatmulParams,
    padding: [u64; PADDING],
}

impl MatrixParams {
    pub(super) fn new(w: &CudaMatrix, out: Output, bias: u64) -> Self {
        let n = w.n as u32;
        Self { weights: w.buffer.address(), bias, out, n, out_stride: n }
    }

    /// Panels of the matrix.
    pub(super) fn n_panels(&self) -> usize {
        (self.n as usize).div_ceil(PANEL_ROWS)
    }
}

impl MatmulParams {
    /// Parameters of products of `x` with matrices like `w`, without the matrices.
    pub(super) fn new(w: &CudaMatrix, format: &Format, x: Operand) -> Self {
        let k_tiles = w.k_tiles();
        let norm = x.norm.unwrap_or(InputNorm { weight: 0, eps: 0.0, out: 0 });
        Self {
            x: x.address,
            cols: w.k as u32,
            row: if x.norm.is_some() { x.address } else { 0 },
            norm_weight: norm.weight,
            normed: norm.out,
            eps: norm.eps,
            m: x.rows as u32,
            k_tiles: k_tiles as u32,
            n_chunks: k_tiles.div_ceil(format.chunk_tiles) as u32,
            x_stride: (k_tiles * OPERAND_COLUMNS) as u32,
            routes_per_row: 1,
            ..Self::default()
        }
    }

    /// Appends the launch of a kernel. Kernels with wgmma take a tensor map of `x` with boxes of `tma_box_rows` rows.
    pub(super) fn launch(
        self,
        list: &mut CommandList,
        kernel: Result<Kernel>,
        launch: Launch,
        tma_box_rows: Option<usize>,
    ) {
        let Some(box_rows) = tma_box_rows else { return list.launch(kernel, launch, &self) };
        let shape = [self.m, self.x_stride].map(|n| n as usize);
        let (kernel, x) = match TensorMap::new(list.gpu(), self.x, shape, box_rows) {
            Ok(x) => (kernel, x),
            Err(error) => (Err(error), TensorMap::zeroed()),
        };
        list.launch(kernel, launch, &WarpgroupParams { x, matmul: self, padding: [0; PADDING] });
    }
}
