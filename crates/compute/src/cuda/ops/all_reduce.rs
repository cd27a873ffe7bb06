//! Sums and gathers over the ranks of a group, see `all_reduce.cu`.

use bytemuck::{Pod, Zeroable};

use super::Rows;
use crate::Result;
use crate::cuda::exchange::MAX_RANKS;
use crate::cuda::{ARCHIVE, CommandList, Gpu, Launch, Rank};

const MODULE: &str = "all_reduce";
/// Threads of a block.
const THREADS: usize = 512;
/// Most blocks, few enough that those of ranks that share a small GPU run at once.
const BLOCKS: usize = 32;
/// Lines of two values that a rank receives from another one.
const LINES: usize = 65536;
/// Most values of a two-phase sum.
const PIECE: usize = 2 << 20;
/// Bytes of counters and flags.
const STATE_BYTES: usize = 256 + 4 * 2 * MAX_RANKS * BLOCKS;

/// First byte of the word that is 1 if ranks share a GPU.
pub(in crate::cuda) const SHARES_GPU: usize = 12;

/// Bytes of memory of a rank of `n_ranks`.
pub(in crate::cuda) fn memory_bytes(n_ranks: usize) -> usize {
    STATE_BYTES + 2 * 16 * n_ranks * LINES + 2 * 2 * 4 * (PIECE + 4 * MAX_RANKS)
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

/// Launches a kernel with a thread for each of `n` elements, up to a limit.
fn launch<P: Pod>(list: &mut CommandList, name: &'static str, n: usize, params: &P) {
    let kernel = list.gpu().kernel(&ARCHIVE, MODULE, name, 0);
    let grid = [n.div_ceil(THREADS).clamp(1, BLOCKS), 1, 1];
    list.launch_collective(kernel, Launch { grid, threads: THREADS, shared_bytes: 0 }, params);
}

/// Adds the sum of `x` over all ranks to the values of `out`, if `accumulate`, or replaces them by it: `n` f32 values at both
/// addresses, which start and end at a multiple of 16 bytes in memory of their own. Every rank calls it in the same order with
/// the same `n`. The sum is in ascending order of ranks, `out + (x_0 + x_1 + ..)`: all ranks get equal bits.
pub fn all_reduce(
    list: &mut CommandList,
    rank: &Rank,
    (out, x): (u64, u64),
    n: usize,
    accumulate: bool,
) {
    for first in (0..n).step_by(PIECE) {
        let len = PIECE.min(n - first);
        let params = ReduceParams {
            group: rank.into(),
            x: x + 4 * first as u64,
            out: out + 4 * first as u64,
            n: len as u32,
            accumulate: u32::from(accumulate),
        };
        if len <= 2 * LINES {
            launch(list, "all_reduce_lines", len.div_ceil(2), &params);
        } else {
            launch(list, "all_reduce_chunks", len.div_ceil(4 * rank.n_ranks()), &params);
        }
    }
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
        launch(list, "all_gather_lines", n_pairs, &params);
    }
}

/// Loads the kernels of a rank by launches without values, as many on every rank.
pub(in crate::cuda) fn load(gpu: &Gpu, rank: &Rank) -> Result<()> {
    let mut list = CommandList::new(gpu);
    let group = rank.into();
    let params = ReduceParams { group, x: 0, out: 0, n: 0, accumulate: 0 };
    launch(&mut list, "all_reduce_lines", 0, &params);
    launch(&mut list, "all_reduce_chunks", 0, &params);
    let params = GatherParams {
        group,
        x: 0,
        out: 0,
        first_col: [0; MAX_RANKS + 1],
        n_rows: 0,
        first: 0,
        n_pairs: 0,
    };
    launch(&mut list, "all_gather_lines", 0, &params);
    list.run()
}
