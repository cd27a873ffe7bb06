//! All-reduce and all-gather over the ranks of a group, see `all_reduce.cu`.

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};

use super::{OPERAND_COLUMNS, Rows};
use crate::Result;
use crate::cuda::communicator::{MAX_BLOCKS, MAX_RANKS, PACKETS};
use crate::cuda::{ARCHIVE, CommandList, Communicator, Gpu, Launch, Rank};
use crate::op::NormArgs;

const MODULE: &str = "all_reduce";
/// Threads of a block.
const THREADS: usize = 512;
/// Maximum blocks of a rank that shares a GPU with others of its group: the blocks of all ranks must be resident at once.
const SHARED_GPU_BLOCKS: usize = 16;
/// Maximum blocks of a one-shot kernel, which the link bounds.
const ONE_SHOT_BLOCKS: usize = 32;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Group {
    memory: [u64; MAX_RANKS],
    fault: u64,
    rank: u32,
    n_ranks: u32,
}

impl From<&Rank> for Group {
    fn from(rank: &Rank) -> Self {
        Self {
            memory: rank.memory(),
            fault: rank.fault(),
            rank: rank.index() as u32,
            n_ranks: rank.n_ranks() as u32,
        }
    }
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct ReduceParams {
    group: Group,
    x: u64,
    out: u64,
    n: u32,
    accumulate: u32,
    chunk: u32,
    unused: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct ReduceNormParams {
    group: Group,
    x: u64,
    out: u64,
    operand: u64,
    weight: u64,
    n_rows: u32,
    cols: u32,
    accumulate: u32,
    eps: f32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct GatherParams {
    group: Group,
    x: u64,
    out: u64,
    first_col: [u32; MAX_RANKS + 1],
    n_rows: u32,
    first: u32,
    n_pairs: u32,
}

/// Launches a kernel with `n_blocks` blocks, up to a limit. All ranks launch the same number.
fn launch<P: Pod>(
    list: &mut CommandList,
    rank: &Rank,
    name: &'static str,
    n_blocks: usize,
    params: &P,
) {
    let kernel = list.gpu().kernel(&ARCHIVE, MODULE, name, 0);
    let max_blocks = if rank.shares_gpu() { SHARED_GPU_BLOCKS } else { MAX_BLOCKS };
    let grid = [n_blocks.clamp(1, max_blocks), 1, 1];
    list.launch_collective(kernel, Launch { grid, threads: THREADS, shared_bytes: 0 }, params);
}

/// Arguments of [`all_reduce`].
#[derive(Debug, Clone, Copy)]
pub struct Sum {
    /// Packed values of this rank.
    pub x: Rows,
    /// Address of the result.
    pub out: u64,
    /// Adds the sum to `out` instead of replacing its values.
    pub accumulate: bool,
    /// Only the rank's own rows of `out` are valid, see [`all_reduce_norm`].
    pub has_own_rows: bool,
}

impl Sum {
    /// Rows of a rank; the last ranks may have fewer.
    fn rows_per_rank(&self, n_ranks: usize) -> usize {
        self.x.rows.div_ceil(n_ranks)
    }
}

/// Sum of `x` over all ranks: `out (+)= x_0 + x_1 + ..`, in this order, so that all ranks get equal bits. `x` and `out` are aligned to 16
/// bytes and padded to a multiple of 16 bytes. Every rank calls it in the same order with the same shape.
pub fn all_reduce(list: &mut CommandList, rank: &Rank, sum: Sum) {
    let Sum { x: Rows { address, rows, cols, .. }, out, accumulate, has_own_rows } = sum;
    let n = rows * cols;
    let chunk = match cols % 4 {
        0 => sum.rows_per_rank(rank.n_ranks()) * cols,
        _ => n.div_ceil(rank.n_ranks()).next_multiple_of(4),
    };
    let params = ReduceParams {
        group: rank.into(),
        x: address,
        out,
        n: n as u32,
        accumulate: u32::from(accumulate),
        chunk: chunk as u32,
        unused: 0,
    };
    if n <= 2 * PACKETS && !has_own_rows {
        let n_blocks = n.div_ceil(2 * THREADS).min(ONE_SHOT_BLOCKS);
        launch(list, rank, "all_reduce_ll", n_blocks, &params);
    } else {
        launch(list, rank, "all_reduce_two_phase", chunk.div_ceil(8 * THREADS), &params);
    }
}

/// [`all_reduce`] followed by RMS norm: each rank keeps its own rows of the sum in `out` and leaves the other rows; every rank gets
/// `operand = norm(out)` of all rows in f16.
///
/// # Panics
/// If the columns are no multiple of [`OPERAND_COLUMNS`].
pub fn all_reduce_norm(
    list: &mut CommandList,
    rank: &Rank,
    sum: Sum,
    (operand, norm): (u64, NormArgs<u64>),
) {
    let Sum { x, out, accumulate, .. } = sum;
    assert!(x.cols.is_multiple_of(OPERAND_COLUMNS), "all reduce: {} columns", x.cols);
    let params = ReduceNormParams {
        group: rank.into(),
        x: x.address,
        out,
        operand,
        weight: norm.weight,
        n_rows: x.rows as u32,
        cols: x.cols as u32,
        accumulate: u32::from(accumulate),
        eps: norm.eps,
    };
    let n_blocks = sum.rows_per_rank(rank.n_ranks()).div_ceil(2);
    launch(list, rank, "all_reduce_norm", n_blocks, &params);
}

/// Concatenates the columns of all ranks in the rows at `out`. `x`: packed rows of this rank; `first_cols`: first column of each rank,
/// then the number of columns. Every rank calls it in the same order with the same number of rows.
///
/// # Panics
/// If the columns of `x` are not those of this rank.
pub fn all_gather(list: &mut CommandList, rank: &Rank, out: u64, x: Rows, first_cols: &[usize]) {
    let cols = |rank: usize| first_cols[rank + 1] - first_cols[rank];
    assert_eq!((x.cols, x.stride), (cols(rank.index()), x.cols), "all gather: columns of the rank");
    let most = x.rows * (0..rank.n_ranks()).map(cols).max().unwrap_or(0);
    let mut first_col = [0; MAX_RANKS + 1];
    for (to, &first) in first_col.iter_mut().zip(first_cols) {
        *to = first as u32;
    }
    for first in (0..most).step_by(2 * PACKETS) {
        let n_pairs = PACKETS.min((most - first).div_ceil(2));
        let params = GatherParams {
            group: rank.into(),
            x: x.address,
            out,
            first_col,
            n_rows: x.rows as u32,
            first: first as u32,
            n_pairs: n_pairs as u32,
        };
        let n_blocks = n_pairs.div_ceil(THREADS).min(ONE_SHOT_BLOCKS);
        launch(list, rank, "all_gather_ll", n_blocks, &params);
    }
}

/// Connects GPUs: allocates the memory of a group, lets every GPU write it, and loads the collective kernels. A GPU may occur several
/// times.
///
/// # Errors
/// [`Error::NoPeerAccess`](crate::Error::NoPeerAccess), [`Error::OutOfMemory`](crate::Error::OutOfMemory), or if the driver refuses.
///
/// # Panics
/// If there are more than [`MAX_RANKS`].
pub fn connect(gpus: &[Gpu]) -> Result<Arc<Communicator>> {
    let communicator = Communicator::new(gpus)?;
    for (index, gpu) in gpus.iter().enumerate() {
        // The driver may load a kernel at its first launch, and wait for other work while it does.
        load(gpu, &communicator.rank(index))?;
    }
    // The memory must be cleared before a rank writes to it.
    gpus.iter().try_for_each(Gpu::synchronize)?;
    Ok(communicator)
}

/// Loads the collective kernels of a rank by launches without values, the same on every rank.
fn load(gpu: &Gpu, rank: &Rank) -> Result<()> {
    let mut list = CommandList::new(gpu);
    let none = Rows { address: 0, rows: 0, cols: 0, stride: 0 };
    let sum = Sum { x: none, out: 0, accumulate: false, has_own_rows: false };
    all_reduce(&mut list, rank, sum);
    all_reduce(&mut list, rank, Sum { has_own_rows: true, ..sum });
    all_reduce_norm(&mut list, rank, sum, (0, NormArgs { weight: 0, bias: None, eps: 0.0 }));
    let params = GatherParams {
        group: rank.into(),
        x: 0,
        out: 0,
        first_col: [0; MAX_RANKS + 1],
        n_rows: 0,
        first: 0,
        n_pairs: 0,
    };
    launch(&mut list, rank, "all_gather_ll", 0, &params);
    list.run()
}
