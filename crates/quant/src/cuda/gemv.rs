//! Shapes of GEMV, see `gemv.cuh`.

use stonechat_compute::cuda::ops::OPERAND_COLUMNS;
use stonechat_compute::cuda::{CudaDevice, Launch};

use super::matrix::Format;

/// Most dynamic shared memory of a block, of devices with bulk copies.
pub(super) const MAX_SHARED_BYTES: usize = 220 << 10;
/// Shared memory of kernels beside the dynamic one.
const STATIC_SHARED_BYTES: usize = 2 << 10;
/// Parts of the columns of a matrix, with a sum each.
const PARTS: usize = 8;
/// Bytes between rows of activations in shared memory.
const ROW_PADDING: usize = 16;
/// Columns of a result in shared memory beyond those of the strips.
const TILE_PADDING: usize = 4;
/// Time to start a block, and to add the sums of parts, in units of weights.
const START_UNITS: usize = 2;
const SPLIT_UNITS: usize = 2;

/// Rows that a block has: kernel, rows of a warp, warps for each strip.
const ROWS: [(&str, usize, usize); 4] =
    [("gemv_8", 8, 1), ("gemv_8", 8, 2), ("gemv_32", 32, 1), ("gemv_32", 32, 2)];

/// Products of a launch.
#[derive(Debug, Clone, Copy)]
pub(super) struct GemvWork {
    pub(super) rows: usize,
    pub(super) cols: usize,
    /// Strips of all matrices, or of each of a gated pair.
    pub(super) n_strips: usize,
    pub(super) is_gated: bool,
    /// Blocks of choices of experts, with `rows` each.
    pub(super) n_blocks: usize,
}

impl GemvWork {
    pub(super) fn of_rows(rows: usize, cols: usize, n_strips: usize) -> Self {
        Self { rows, cols, n_strips, is_gated: false, n_blocks: 1 }
    }
}

/// Launch of a product.
#[derive(Debug, Clone, Copy)]
pub(super) struct GemvShape {
    pub(super) kernel: &'static str,
    /// Strips and stages of a block.
    pub(super) strips: usize,
    pub(super) stages: usize,
    /// Blocks that share the columns of a strip.
    pub(super) n_splits: usize,
    pub(super) launch: Launch,
    /// Scratch memory: sums of parts, and a counter for each tile of results.
    pub(super) partial_bytes: usize,
    pub(super) counter_bytes: usize,
}

/// Shared memory of a block.
fn shared_bytes(format: &Format, rows: usize, strips: usize, stages: usize) -> usize {
    let row = 2 * OPERAND_COLUMNS * format.unit_tiles + ROW_PADDING;
    let stage = strips * format.unit_bytes() + rows * row;
    // Of blocks of 16 columns for each stage, and of the parts.
    let (sums, totals) = (stages * rows * 64, 4 * rows * 16 * strips);
    let results = 4 * rows * (16 * strips + TILE_PADDING);
    (stages * stage).max(results) + sums + totals
}

impl GemvShape {
    /// Blocks of as many rows as needed and as many strips as shared memory holds, in three stages or four; and the number of
    /// splits that takes the least time.
    ///
    /// # Panics
    /// If no block fits the shared memory of the device, which 48 KB are enough for.
    pub(super) fn new(device: &CudaDevice, format: &Format, work: &GemvWork) -> Self {
        let max_bytes = device.max_shared_bytes as usize;
        let limit = (max_bytes - STATIC_SHARED_BYTES).min(MAX_SHARED_BYTES);
        let needed = ROWS.iter().position(|(_, rows, halves)| rows * halves >= work.rows);
        let candidates = ROWS[..=needed.unwrap_or(ROWS.len() - 1)].iter().rev();
        let sizes = candidates.flat_map(|row| [8, 4, 2].map(|strips| (row, strips)));
        let mut shapes = sizes.filter_map(|(&(kernel, warp_rows, halves), strips)| {
            let (rows, warps) = (warp_rows * halves, strips * halves);
            let bytes = |stages| shared_bytes(format, rows, strips, stages);
            // Two small blocks share a multiprocessor.
            let is_small = warps <= 8 && 2 * (bytes(3) + STATIC_SHARED_BYTES) <= max_bytes;
            let limit = if is_small { max_bytes / 2 - STATIC_SHARED_BYTES } else { limit };
            let stages = [4, 3].into_iter().find(|&stages| bytes(stages) <= limit)?;
            Some((kernel, rows, warps, strips, stages, bytes(stages), 1 + usize::from(is_small)))
        });
        let (kernel, rows, warps, strips, stages, shared_bytes, per_multiprocessor) =
            shapes.next().expect("48 KB of shared memory");
        let n_groups = work.n_strips.div_ceil(if work.is_gated { strips / 2 } else { strips });
        let row_blocks = if work.n_blocks > 1 { 1 } else { work.rows.div_ceil(rows) };
        let tiles = n_groups * row_blocks * work.n_blocks;
        let n_units = work.cols.div_ceil(OPERAND_COLUMNS * format.unit_tiles);
        let n_multiprocessors = device.n_multiprocessors as usize;
        let time = |n_splits: usize| {
            let units = n_units.div_ceil(PARTS).max(1) * PARTS / n_splits;
            let units = units.min(n_units);
            let rounds = (tiles * n_splits).div_ceil(n_multiprocessors);
            let starts = rounds.div_ceil(per_multiprocessor);
            rounds * units + START_UNITS * starts + if n_splits > 1 { SPLIT_UNITS } else { 0 }
        };
        let splits = [1, 2, 4, 8].into_iter().filter(|&n| n <= n_units.next_power_of_two());
        let n_splits = splits.min_by_key(|&n| time(n)).unwrap_or(1);
        let is_split = n_splits > 1;
        Self {
            kernel,
            strips,
            stages,
            n_splits,
            launch: Launch {
                grid: [n_groups * row_blocks * n_splits, work.n_blocks, 1],
                threads: 32 * warps,
                shared_bytes,
            },
            partial_bytes: if is_split { tiles * PARTS * 4 * rows * 16 * strips } else { 0 },
            counter_bytes: if is_split { 4 * tiles } else { 0 },
        }
    }
}
