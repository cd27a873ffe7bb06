//! Sums and gathers over the ranks of a group, see `all_reduce.cu`.

use bytemuck::{Pod, Zeroable};

use super::{OPERAND_COLUMNS, Rows};
use crate::Result;
use crate::cuda::communicator::MAX_RANKS;
use crate::cuda::{ARCHIVE, CommandList, Gpu, Launch, Rank};

const MODULE: &str = "all_reduce";
/// Threads of a block.
const THREADS: usize = 512;
/// Most blocks of a kernel of a rank.
const MAX_BLOCKS: usize = 128;
/// Most blocks of a rank that shares a GPU with others of its group: those of all ranks run at once.
const SHARED_GPU_BLOCKS: usize = 16;
/// Most blocks of a one-shot kernel, whose time is that of the link.
const LINES_BLOCKS: usize = 32;
/// Lines of two values that a rank receives from another one.
const LINES: usize = 65536;
/// Bytes of counters, places and flags.
const STATE_BYTES: usize = 256 + (32 + 4) * MAX_RANKS * MAX_BLOCKS;

/// First byte of the word that is 1 if ranks share a GPU.
pub(in crate::cuda) const SHARES_GPU: usize = 12;

/// Bytes of memory of a rank of `n_ranks`.
pub(in crate::cuda) fn memory_bytes(n_ranks: usize) -> usize {
    STATE_BYTES + 2 * 16 * n_ranks * LINES
}

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

/// Launches a kernel with so many blocks, up to a limit. All ranks have the same number.
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

/// Values to sum over the ranks.
#[derive(Debug, Clone, Copy)]
pub struct Sum {
    /// Packed values of this rank.
    pub x: Rows,
    /// Address of the result.
    pub out: u64,
    /// Adds the sum to the values of `out`, else it replaces them.
    pub accumulate: bool,
    /// `out` holds the values of the rank's own rows alone, see [`all_reduce_norm`].
    pub has_own_rows: bool,
}

impl Sum {
    /// Rows of a rank; the last ranks may have fewer.
    fn rows_per_rank(&self, n_ranks: usize) -> usize {
        self.x.rows.div_ceil(n_ranks)
    }
}

/// Sum of `x` over all ranks: `out (+)= x_0 + x_1 + ..`, in this order, so that all ranks get equal bits. Both addresses start and
/// end at a multiple of 16 bytes in memory of their own. Every rank calls it in the same order with the same shape.
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
    if n <= 2 * LINES && !has_own_rows {
        let n_blocks = n.div_ceil(2 * THREADS).min(LINES_BLOCKS);
        launch(list, rank, "all_reduce_lines", n_blocks, &params);
    } else {
        launch(list, rank, "all_reduce_chunks", chunk.div_ceil(8 * THREADS), &params);
    }
}

/// Sum over all ranks, of which each rank keeps its own rows, and its RMS norm: as [`all_reduce`], and `operand = norm(out) * weight`
/// of all rows in f16 on every rank. Rows of other ranks in `out` are not written.
///
/// # Panics
/// If the columns are no multiple of [`OPERAND_COLUMNS`].
pub fn all_reduce_norm(
    list: &mut CommandList,
    rank: &Rank,
    sum: Sum,
    (operand, weight, eps): (u64, u64, f32),
) {
    let Sum { x, out, accumulate, .. } = sum;
    assert!(x.cols.is_multiple_of(OPERAND_COLUMNS), "all reduce: {} columns", x.cols);
    let params = ReduceNormParams {
        group: rank.into(),
        x: x.address,
        out,
        operand,
        weight,
        n_rows: x.rows as u32,
        cols: x.cols as u32,
        accumulate: u32::from(accumulate),
        eps,
    };
    let n_blocks = sum.rows_per_rank(rank.n_ranks()).div_ceil(2);
    launch(list, rank, "all_reduce_norm", n_blocks, &params);
}

/// Writes the columns of all ranks side by side to the rows at `out`. `x`: packed rows of this rank; `first_cols`: first column of
/// each rank, then the number of columns. Every rank calls it in the same order with the same number of rows.
///
/// # Panics
/// If `x` has not the columns of this rank.
pub fn all_gather(list: &mut CommandList, rank: &Rank, out: u64, x: Rows, first_cols: &[usize]) {
    let cols = |rank: usize| first_cols[rank + 1] - first_cols[rank];
    assert_eq!((x.cols, x.stride), (cols(rank.index()), x.cols), "all gather: columns of the rank");
    let most = x.rows * (0..rank.n_ranks()).map(cols).max().unwrap_or(0);
    let mut first_col = [0; MAX_RANKS + 1];
    for (to, &first) in first_col.iter_mut().zip(first_cols) {
        *to = first as u32;
    }
    for first in (0..most).step_by(2 * LINES) {
        let n_pairs = LINES.min((most - first).div_ceil(2));
        let params = GatherParams {
            group: rank.into(),
            x: x.address,
            out,
            first_col,
            n_rows: x.rows as u32,
            first: first as u32,
            n_pairs: n_pairs as u32,
        };
        let n_blocks = n_pairs.div_ceil(THREADS).min(LINES_BLOCKS);
        launch(list, rank, "all_gather_lines", n_blocks, &params);
    }
}

/// Loads the kernels of a rank by launches without values, as many on every rank.
pub(in crate::cuda) fn load(gpu: &Gpu, rank: &Rank) -> Result<()> {
    let mut list = CommandList::new(gpu);
    let none = Rows { address: 0, rows: 0, cols: 0, stride: 0 };
    let sum = Sum { x: none, out: 0, accumulate: false, has_own_rows: false };
    all_reduce(&mut list, rank, sum);
    all_reduce(&mut list, rank, Sum { has_own_rows: true, ..sum });
    all_reduce_norm(&mut list, rank, sum, (0, 0, 0.0));
    let params = GatherParams {
        group: rank.into(),
        x: 0,
        out: 0,
        first_col: [0; MAX_RANKS + 1],
        n_rows: 0,
        first: 0,
        n_pairs: 0,
    };
    launch(&mut list, rank, "all_gather_lines", 0, &params);
    list.run()
}
