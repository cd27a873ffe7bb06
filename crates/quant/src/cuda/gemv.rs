//! Shapes of GEMV, see `gemv.cuh`.

use stonechat_compute::cuda::ops::OPERAND_COLUMNS;
use stonechat_compute::cuda::{CudaDevice, Launch};

use super::matrix::Format;

/// Most dynamic shared memory of a block, of devices with bulk copies.
pub(super) const MAX_SHARED_BYTES: usize = 220 << 10;
/// Shared memory of kernels beside the dynamic one.
pub(super) const STATIC_SHARED_BYTES: usize = 2 << 10;
/// Parts of the columns of a matrix, with a sum each.
const PARTS: usize = 8;
/// Bytes between rows of activations in shared memory.
const ROW_PADDING: usize = 16;
/// Columns of a result in shared memory beyond those of the strips.
const TILE_PADDING: usize = 4;
/// Time to start a block, and to add the sums of parts, in units of weights.
const START_UNITS: usize = 2;
const SPLIT_UNITS: usize = 2;

/// Strips of a block with instructions of warpgroups.
pub(super) const WARPGROUP_STRIPS: usize = 8;
/// Warps of such a block that copy, beside one for each strip.
pub(super) const COPY_WARPS: usize = 4;
/// Bytes at whose multiples stages of tiles of activations begin, and their number in such a block.
pub(super) const TILE_ALIGNMENT: usize = 1024;
const WARPGROUP_TILES: usize = 8;

/// Rows of a block.
#[derive(Debug, Clone, Copy)]
struct Rows {
    kernel: &'static str,
    /// Of a warp.
    of_warp: usize,
    /// Warps for each strip.
    per_strip: usize,
    uses_warpgroups: bool,
}

impl Rows {
    const fn of_warps(kernel: &'static str, of_warp: usize, per_strip: usize) -> Self {
        Self { kernel, of_warp, per_strip, uses_warpgroups: false }
    }

    const fn of_warpgroups(kernel: &'static str, of_warp: usize) -> Self {
        Self { kernel, of_warp, per_strip: 1, uses_warpgroups: true }
    }

    fn n(self) -> usize {
        self.of_warp * self.per_strip
    }

    fn strips(self) -> &'static [usize] {
        if self.uses_warpgroups { &[WARPGROUP_STRIPS] } else { &[8, 4, 2] }
    }

    /// Shared memory of a block: stages, sums of blocks of 16 columns for each, sums of parts, results.
    fn shared_bytes(self, format: &Format, strips: usize, stages: usize) -> usize {
        let rows = self.n();
        let weights = strips * format.unit_bytes();
        if self.uses_warpgroups {
            let sums = rows * 32 * format.minimum_groups();
            let totals = 4 * rows * 16 * strips;
            let tile = 2 * OPERAND_COLUMNS * rows;
            return TILE_ALIGNMENT + WARPGROUP_TILES * tile + stages * (weights + sums) + totals;
        }
        let row = 2 * OPERAND_COLUMNS * format.unit_tiles;
        let results = 4 * rows * (16 * strips + TILE_PADDING);
        let sums = stages * rows * 64;
        let stage = weights + rows * (row + ROW_PADDING);
        (stages * stage).max(results) + sums + 4 * rows * 16 * strips
    }
}

/// Rows of blocks, fewest first.
const ROWS: [Rows; 4] = [
    Rows::of_warps("gemv_8", 8, 1),
    Rows::of_warps("gemv_8", 8, 2),
    Rows::of_warps("gemv_32", 32, 1),
    Rows::of_warps("gemv_32", 32, 2),
];
/// The same of devices with instructions of warpgroups.
const WARPGROUP_ROWS: [Rows; 3] = [
    Rows::of_warps("gemv_8", 8, 1),
    Rows::of_warpgroups("gemv_warpgroup_32", 32),
    Rows::of_warpgroups("gemv_warpgroup_64", 64),
];

/// Groups of 8 warps of a block of one row, each of which has strips of its own.
pub(super) const ROW_GROUPS: usize = 2;

/// Of `n_blocks` blocks of one row, at least 2, those for the first of two formats with so many strips, of so many bytes each: the
/// split whose last block ends first.
pub(super) fn n_first_blocks(n_blocks: usize, strips: [usize; 2], bytes: [usize; 2]) -> usize {
    let time = |i: usize, blocks: usize| strips[i].div_ceil(ROW_GROUPS * blocks) * bytes[i];
    let both = |first: &usize| {
        let times = [time(0, *first), time(1, n_blocks - first)];
        (times[0].max(times[1]), times[0].min(times[1]))
    };
    (1..n_blocks).min_by_key(both).expect("two blocks")
}

/// Products of a launch.
#[derive(Debug, Clone, Copy)]
pub(super) struct GemvWork {
    pub(super) rows: usize,
    pub(super) cols: usize,
    /// Strips of all matrices, or of each of a gated pair.
    pub(super) n_strips: usize,
    pub(super) is_gated: bool,
    /// Blocks of at most `rows` choices of experts.
    pub(super) n_expert_blocks: Option<usize>,
}

impl GemvWork {
    pub(super) fn of_rows(rows: usize, cols: usize, n_strips: usize) -> Self {
        Self { rows, cols, n_strips, is_gated: false, n_expert_blocks: None }
    }
}

/// Size of a device.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    n_multiprocessors: usize,
    /// Shared memory of a block.
    max_shared_bytes: usize,
    has_warpgroups: bool,
}

impl From<&CudaDevice> for Limits {
    fn from(device: &CudaDevice) -> Self {
        Self {
            n_multiprocessors: device.n_multiprocessors as usize,
            max_shared_bytes: device.limits.block_shared_bytes,
            has_warpgroups: device.has_warpgroups(),
        }
    }
}

/// A block of threads.
#[derive(Debug, Clone, Copy)]
struct Block {
    kernel: &'static str,
    rows: usize,
    warps: usize,
    strips: usize,
    stages: usize,
    shared_bytes: usize,
    per_multiprocessor: usize,
    uses_warpgroups: bool,
}

impl Block {
    /// The block of as many of `rows` rows, and of as many strips, as shared memory holds, in three stages or four.
    ///
    /// # Panics
    /// If no block fits, which 48 KB are enough for.
    fn new(limits: Limits, format: &Format, rows: usize) -> Self {
        let max_bytes = limits.max_shared_bytes;
        let limit = (max_bytes - STATIC_SHARED_BYTES).min(MAX_SHARED_BYTES);
        let all: &[Rows] = if limits.has_warpgroups { &WARPGROUP_ROWS } else { &ROWS };
        let needed = all.iter().position(|of_block| of_block.n() >= rows);
        let candidates = all[..=needed.unwrap_or(all.len() - 1)].iter().rev();
        let sizes = candidates
            .flat_map(|of_block| of_block.strips().iter().map(move |&strips| (*of_block, strips)));
        let mut blocks = sizes.filter_map(|(of_block, strips)| {
            let warps = strips * of_block.per_strip;
            let is_shared = !of_block.uses_warpgroups && warps <= 8;
            let copy_warps = if of_block.uses_warpgroups { COPY_WARPS } else { 0 };
            let bytes = |stages| of_block.shared_bytes(format, strips, stages);
            // Two small blocks share a multiprocessor.
            let is_small = is_shared && 2 * (bytes(3) + STATIC_SHARED_BYTES) <= max_bytes;
            let limit = if is_small { max_bytes / 2 - STATIC_SHARED_BYTES } else { limit };
            let stages = [4, 3].into_iter().find(|&stages| bytes(stages) <= limit)?;
            Some(Self {
                kernel: of_block.kernel,
                rows: of_block.n(),
                warps: warps + copy_warps,
                strips,
                stages,
                shared_bytes: bytes(stages),
                per_multiprocessor: 1 + usize::from(is_small),
                uses_warpgroups: of_block.uses_warpgroups,
            })
        });
        blocks.next().expect("48 KB of shared memory")
    }
}

/// Rows of a block of `format` on a device, at most `rows`.
pub(super) fn block_rows(limits: Limits, format: &Format, rows: usize) -> usize {
    Block::new(limits, format, rows).rows.min(rows)
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
    /// Rows of activations of a box of a tensor map, of kernels that take one.
    pub(super) box_rows: Option<usize>,
    pub(super) launch: Launch,
    /// Scratch memory: sums of parts, and a counter for each tile of results.
    pub(super) partial_bytes: usize,
    pub(super) counter_bytes: usize,
}

impl GemvShape {
    /// The block of [`Block::new`], and the number of splits that takes the least time.
    ///
    /// # Panics
    /// If a block of choices of experts has more than a block of threads, see [`block_rows`].
    pub(super) fn new(limits: Limits, format: &Format, work: &GemvWork) -> Self {
        let block = Block::new(limits, format, work.rows);
        let Block { kernel, rows, warps, strips, stages, shared_bytes, per_multiprocessor, .. } =
            block;
        let n_groups = work.n_strips.div_ceil(if work.is_gated { strips / 2 } else { strips });
        let row_blocks = work.rows.div_ceil(rows);
        let is_whole = work.n_expert_blocks.is_none() || row_blocks == 1;
        assert!(is_whole, "{} choices of an expert in a block of {rows}", work.rows);
        let n_expert_blocks = work.n_expert_blocks.unwrap_or(1);
        let tiles = n_groups * row_blocks * n_expert_blocks;
        let n_units = work.cols.div_ceil(OPERAND_COLUMNS * format.unit_tiles);
        let time = |n_splits: usize| {
            let units = n_units.div_ceil(PARTS).max(1) * PARTS / n_splits;
            let units = units.min(n_units);
            let rounds = (tiles * n_splits).div_ceil(limits.n_multiprocessors);
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
            box_rows: block.uses_warpgroups.then_some(rows),
            launch: Launch {
                grid: [n_groups * row_blocks * n_splits, n_expert_blocks, 1],
                threads: 32 * warps,
                shared_bytes,
            },
            partial_bytes: if is_split { tiles * PARTS * 4 * rows * 16 * strips } else { 0 },
            counter_bytes: if is_split { 4 * tiles } else { 0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::matrix::FORMATS;
    use super::*;

    /// Shared memory of a block: of capability 7.5, 8.6 and 12.0, 8.0, 9.0.
    const SHARED_BYTES: [usize; 4] = [64 << 10, 99 << 10, 163 << 10, 227 << 10];

    fn limits_of(max_shared_bytes: usize) -> Limits {
        let has_warpgroups = max_shared_bytes == SHARED_BYTES[3];
        Limits { n_multiprocessors: 100, max_shared_bytes, has_warpgroups }
    }

    #[test]
    fn both_formats_have_blocks_and_end_together() {
        // Queries and keys of q4_k, values of q6_k of 8B: two strips for each group, one of values.
        let first = n_first_blocks(132, [320, 64], [2304, 3360]);
        assert_eq!([320usize.div_ceil(2 * first), 64usize.div_ceil(2 * (132 - first))], [2, 1]);
        assert_eq!(n_first_blocks(2, [1, 1], [3, 4]), 1);
        assert_eq!(n_first_blocks(132, [1, 500], [3, 4]), 1);
        // No split needs more than two rounds of the 500 strips.
        let first = n_first_blocks(132, [500, 1], [3, 4]);
        assert_eq!(500usize.div_ceil(2 * first), 2);
    }

    #[test]
    fn blocks_fit_every_device_and_cover_all_rows() {
        for (max_shared_bytes, format) in
            SHARED_BYTES.iter().flat_map(|bytes| FORMATS.iter().map(move |f| (*bytes, f)))
        {
            let limits = limits_of(max_shared_bytes);
            for rows in 1..=128 {
                let work = GemvWork::of_rows(rows, 2304, 37);
                let shape = GemvShape::new(limits, format, &work);
                let shared = shape.launch.shared_bytes + STATIC_SHARED_BYTES;
                assert!(shared <= max_shared_bytes, "{format:?}, {rows} rows: {shape:?}");
                let of_block = Block::new(limits, format, rows).rows;
                let blocks = shape.launch.grid[0] / shape.n_splits;
                let n_groups = 37usize.div_ceil(shape.strips);
                assert_eq!(blocks, n_groups * rows.div_ceil(of_block), "{format:?}: {shape:?}");
            }
        }
    }

    #[test]
    fn choices_of_an_expert_fit_a_block() {
        for (max_shared_bytes, format) in
            SHARED_BYTES.iter().flat_map(|bytes| FORMATS.iter().map(move |f| (*bytes, f)))
        {
            let limits = limits_of(max_shared_bytes);
            for asked in [8, 32, 64] {
                let rows = block_rows(limits, format, asked);
                assert!((8..=asked).contains(&rows), "{format:?}: {rows} of {asked}");
                let work = GemvWork::of_rows(rows, 2304, 37);
                let work = GemvWork { n_expert_blocks: Some(5), ..work };
                assert_eq!(GemvShape::new(limits, format, &work).launch.grid[1], 5);
            }
        }
        let hopper = limits_of(SHARED_BYTES[3]);
        assert!(FORMATS.iter().all(|format| block_rows(hopper, format, 64) == 64));
    }
}
