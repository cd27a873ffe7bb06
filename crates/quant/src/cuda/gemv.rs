//! GEMV: block shapes and launches, see `gemv.cuh`, `gemv_row.cuh` and `gemv_warpgroup.cuh`.

use stonechat_compute::cuda::ops::OPERAND_COLUMNS;
use stonechat_compute::cuda::{CommandList, CudaDevice, Gpu, Launch};

use super::ARCHIVE;
use super::format::{Format, Formats};
use super::params::{MatmulParams, MatrixParams, Scratch};

/// Maximum rows of GEMV, where the sums of a row do not depend on the others.
pub const MAX_GEMV_ROWS: usize = 128;

/// Maximum dynamic shared memory of a block, on devices with bulk copies.
pub(super) const MAX_SHARED_BYTES: usize = 220 << 10;
/// Upper bound of static shared memory of a kernel.
pub(super) const STATIC_SHARED_BYTES: usize = 2 << 10;
/// Slices of K, with a partial sum each.
const K_SLICES: usize = 8;
/// Padding of a row of activations in shared memory, in bytes.
const ROW_PADDING: usize = 16;
/// Padding of a row of results in shared memory, in columns.
const TILE_PADDING: usize = 4;
/// Cost of a block start and of the split-K reduction, counted in super-tiles of weights.
const BLOCK_START_COST: usize = 2;
const SPLIT_K_COST: usize = 2;

/// Panels of a block with wgmma.
pub(super) const WARPGROUP_PANELS: usize = 8;
/// Producer warps of a block with wgmma, besides one consumer warp per panel.
pub(super) const COPY_WARPS: usize = 4;
/// Alignment of stages of activation tiles with wgmma, and the number of stages.
pub(super) const TILE_ALIGNMENT: usize = 1024;
const WARPGROUP_TILES: usize = 8;

/// Kernel and rows of a block.
#[derive(Debug, Clone, Copy)]
struct Rows {
    kernel: &'static str,
    /// Rows of a warp.
    of_warp: usize,
    /// Warps per panel.
    per_panel: usize,
    uses_warpgroups: bool,
}

impl Rows {
    const fn of_warps(kernel: &'static str, of_warp: usize, per_panel: usize) -> Self {
        Self { kernel, of_warp, per_panel, uses_warpgroups: false }
    }

    const fn of_warpgroups(kernel: &'static str, of_warp: usize) -> Self {
        Self { kernel, of_warp, per_panel: 1, uses_warpgroups: true }
    }

    fn n(self) -> usize {
        self.of_warp * self.per_panel
    }

    fn panels(self) -> &'static [usize] {
        if self.uses_warpgroups { &[WARPGROUP_PANELS] } else { &[8, 4, 2] }
    }

    /// Shared memory of a block: stages, sums of blocks of 16 columns for each stage, totals of slices, results.
    fn shared_bytes(self, format: &Format, panels: usize, stages: usize) -> usize {
        let rows = self.n();
        let weights = panels * format.super_tile_bytes();
        if self.uses_warpgroups {
            let sums = rows * 32 * format.minimum_groups();
            let totals = 4 * rows * 16 * panels;
            let tile = 2 * OPERAND_COLUMNS * rows;
            return TILE_ALIGNMENT + WARPGROUP_TILES * tile + stages * (weights + sums) + totals;
        }
        let row = 2 * OPERAND_COLUMNS * format.super_tile_len();
        let results = 4 * rows * (16 * panels + TILE_PADDING);
        let sums = stages * rows * 64;
        let stage = weights + rows * (row + ROW_PADDING);
        (stages * stage).max(results) + sums + 4 * rows * 16 * panels
    }
}

/// Rows of blocks by mma, fewest first.
const ROWS: [Rows; 4] = [
    Rows::of_warps("gemv_8", 8, 1),
    Rows::of_warps("gemv_8", 8, 2),
    Rows::of_warps("gemv_32", 32, 1),
    Rows::of_warps("gemv_32", 32, 2),
];
/// Block shapes for devices with wgmma, in the order of [`ROWS`].
const WARPGROUP_ROWS: [Rows; 3] = [
    Rows::of_warps("gemv_8", 8, 1),
    Rows::of_warpgroups("gemv_warpgroup_32", 32),
    Rows::of_warpgroups("gemv_warpgroup_64", 64),
];

/// GEMV of one row: groups of a block, each with panels of its own, and threads of a group.
const ROW_GROUPS: usize = 2;
const ROW_GROUP_THREADS: usize = 256;
/// Minimum shared memory of its blocks, so that one block fits per SM.
const MIN_ROW_BYTES: usize = 112 << 10;
/// Maximum columns of a row that is kept in shared memory.
const MAX_ROW: usize = 28 << 10;

/// Number of blocks for the first of two formats in GEMV of one row, out of `n_blocks`, at least 2: minimizes the time of the slowest
/// block. `panels`, `bytes`: panels of each format, and bytes of each panel.
pub(super) fn n_first_blocks(n_blocks: usize, panels: [usize; 2], bytes: [usize; 2]) -> usize {
    let time = |i: usize, blocks: usize| panels[i].div_ceil(ROW_GROUPS * blocks) * bytes[i];
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
    /// Panels of all matrices, or of each of a gated pair.
    pub(super) n_panels: usize,
    pub(super) is_gated: bool,
    /// Blocks of at most `rows` routes.
    pub(super) n_expert_blocks: Option<usize>,
}

impl GemvWork {
    pub(super) fn of_rows(rows: usize, cols: usize, n_panels: usize) -> Self {
        Self { rows, cols, n_panels, is_gated: false, n_expert_blocks: None }
    }
}

/// Limits of a device that shapes depend on.
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
    panels: usize,
    stages: usize,
    shared_bytes: usize,
    per_multiprocessor: usize,
    uses_warpgroups: bool,
}

impl Block {
    /// The largest block for `rows` rows that fits shared memory with three stages or four: rows first, then panels.
    ///
    /// # Panics
    /// If no block fits: 48 KB are enough.
    fn new(limits: Limits, format: &Format, rows: usize) -> Self {
        let max_bytes = limits.max_shared_bytes;
        let limit = (max_bytes - STATIC_SHARED_BYTES).min(MAX_SHARED_BYTES);
        let all: &[Rows] = if limits.has_warpgroups { &WARPGROUP_ROWS } else { &ROWS };
        let needed = all.iter().position(|of_block| of_block.n() >= rows);
        let candidates = all[..=needed.unwrap_or(all.len() - 1)].iter().rev();
        let sizes = candidates
            .flat_map(|of_block| of_block.panels().iter().map(move |&panels| (*of_block, panels)));
        let mut blocks = sizes.filter_map(|(of_block, panels)| {
            let warps = panels * of_block.per_panel;
            let is_shared = !of_block.uses_warpgroups && warps <= 8;
            let copy_warps = if of_block.uses_warpgroups { COPY_WARPS } else { 0 };
            let bytes = |stages| of_block.shared_bytes(format, panels, stages);
            // Two small blocks share an SM.
            let is_small = is_shared && 2 * (bytes(3) + STATIC_SHARED_BYTES) <= max_bytes;
            let limit = if is_small { max_bytes / 2 - STATIC_SHARED_BYTES } else { limit };
            let stages = [4, 3].into_iter().find(|&stages| bytes(stages) <= limit)?;
            Some(Self {
                kernel: of_block.kernel,
                rows: of_block.n(),
                warps: warps + copy_warps,
                panels,
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
    /// Panels and stages of a block.
    pub(super) panels: usize,
    pub(super) stages: usize,
    /// Split-K blocks of a panel.
    pub(super) n_splits: usize,
    /// Rows of a TMA box of activations, for kernels with wgmma.
    pub(super) tma_box_rows: Option<usize>,
    pub(super) launch: Launch,
    /// Scratch memory: partial sums of slices, and a counter per output tile.
    pub(super) partial_bytes: usize,
    pub(super) counter_bytes: usize,
}

impl GemvShape {
    /// The block of [`Block::new`], and the number of splits that takes the least time.
    ///
    /// # Panics
    /// If an expert block has more routes than a block of threads has rows, see [`block_rows`].
    pub(super) fn new(limits: Limits, format: &Format, work: &GemvWork) -> Self {
        let block = Block::new(limits, format, work.rows);
        let Block { kernel, rows, warps, panels, stages, shared_bytes, per_multiprocessor, .. } =
            block;
        let n_groups = work.n_panels.div_ceil(if work.is_gated { panels / 2 } else { panels });
        let row_blocks = work.rows.div_ceil(rows);
        let is_whole = work.n_expert_blocks.is_none() || row_blocks == 1;
        assert!(is_whole, "{} routes of an expert in a block of {rows}", work.rows);
        let n_expert_blocks = work.n_expert_blocks.unwrap_or(1);
        let tiles = n_groups * row_blocks * n_expert_blocks;
        let n_super_tiles = work.cols.div_ceil(OPERAND_COLUMNS * format.super_tile_len());
        let time = |n_splits: usize| {
            let super_tiles = n_super_tiles.div_ceil(K_SLICES).max(1) * K_SLICES / n_splits;
            let super_tiles = super_tiles.min(n_super_tiles);
            let rounds = (tiles * n_splits).div_ceil(limits.n_multiprocessors);
            let starts = rounds.div_ceil(per_multiprocessor);
            let reduction = if n_splits > 1 { SPLIT_K_COST } else { 0 };
            rounds * super_tiles + BLOCK_START_COST * starts + reduction
        };
        let splits = [1, 2, 4, 8].into_iter().filter(|&n| n <= n_super_tiles.next_power_of_two());
        let n_splits = splits.min_by_key(|&n| time(n)).unwrap_or(1);
        let is_split = n_splits > 1;
        Self {
            kernel,
            panels,
            stages,
            n_splits,
            tma_box_rows: block.uses_warpgroups.then_some(rows),
            launch: Launch {
                grid: [n_groups * row_blocks * n_splits, n_expert_blocks, 1],
                threads: 32 * warps,
                shared_bytes,
            },
            partial_bytes: if is_split { tiles * K_SLICES * 4 * rows * 16 * panels } else { 0 },
            counter_bytes: if is_split { 4 * tiles } else { 0 },
        }
    }
}

/// Largest row that GEMV of one row keeps in shared memory, on devices with bulk copies. Only this kernel applies norms and
/// reads matrices of two types.
#[must_use]
pub fn max_row_cols(gpu: &Gpu) -> Option<usize> {
    let has_kernel = gpu.device().limits.block_shared_bytes > MAX_SHARED_BYTES
        && gpu.target(&ARCHIVE).is_ok_and(|target| target.capability >= (9, 0));
    has_kernel.then_some(MAX_ROW)
}

/// Launches GEMV for the rows of `params`, or for blocks of routes.
pub(super) fn launch_gemv(
    list: &mut CommandList,
    scratch: &mut dyn Scratch,
    formats: Formats,
    mut params: MatmulParams,
    work: GemvWork,
) {
    let is_row = params.m == 1 && params.blocks == 0;
    if is_row && max_row_cols(list.gpu()).is_some_and(|max| params.cols as usize <= max) {
        return launch_row(list, formats, params, &work);
    }
    let format = formats.first;
    assert!(formats.second.is_none(), "GEMV of {} has one format", formats.module);
    let shape = GemvShape::new(list.gpu().device().into(), format, &work);
    (params.block_panels, params.n_stages) = (shape.panels as u32, shape.stages as u32);
    params.n_splits = shape.n_splits as u32;
    params.partials = scratch.get("gemv partials", shape.partial_bytes);
    params.counters = scratch.get("gemv counters", shape.counter_bytes);
    let shared_bytes = shape.launch.shared_bytes;
    let kernel = list.gpu().kernel(&ARCHIVE, formats.module, shape.kernel, shared_bytes);
    params.launch(list, kernel, shape.launch, shape.tma_box_rows);
}

/// Launches GEMV of one row.
fn launch_row(list: &mut CommandList, formats: Formats, mut params: MatmulParams, work: &GemvWork) {
    let row_bytes = 512 * params.k_tiles.div_ceil(4) as usize;
    let (super_tile_bytes, stages) = formats.row_stages();
    let stage_bytes = 8 * ROW_GROUPS * stages * super_tile_bytes;
    let shared_bytes = (stage_bytes + row_bytes).max(MIN_ROW_BYTES);
    let kernel = list.gpu().kernel(&ARCHIVE, formats.module, "gemv_row", shared_bytes);
    let n_blocks = work.n_panels.min(list.gpu().device().n_multiprocessors as usize);
    if let Some(second) = formats.second {
        let first = &params.matrices[..params.n_first_matrices as usize];
        let n_first: usize = first.iter().map(MatrixParams::n_panels).sum();
        let bytes = [formats.first, second].map(Format::super_tile_bytes);
        let panels = [n_first, work.n_panels - n_first];
        params.n_first_blocks = n_first_blocks(n_blocks, panels, bytes) as u32;
    }
    let grid = [n_blocks, 1, 1];
    let launch = Launch { grid, threads: ROW_GROUPS * ROW_GROUP_THREADS, shared_bytes };
    list.launch(kernel, launch, &params);
}

#[cfg(test)]
mod tests {
    use super::super::format::FORMATS;
    use super::*;

    /// Shared memory of a block: of capability 7.5, 8.6 and 12.0, 8.0, 9.0.
    const SHARED_BYTES: [usize; 4] = [64 << 10, 99 << 10, 163 << 10, 227 << 10];

    fn limits_of(max_shared_bytes: usize) -> Limits {
        let has_warpgroups = max_shared_bytes == SHARED_BYTES[3];
        Limits { n_multiprocessors: 100, max_shared_bytes, has_warpgroups }
    }

    #[test]
    fn both_formats_have_blocks_and_end_together() {
        // Queries and keys of q4_k, values of q6_k of 8B: two panels for each group, one of values.
        let first = n_first_blocks(132, [320, 64], [2304, 3360]);
        assert_eq!([320usize.div_ceil(2 * first), 64usize.div_ceil(2 * (132 - first))], [2, 1]);
        assert_eq!(n_first_blocks(2, [1, 1], [3, 4]), 1);
        assert_eq!(n_first_blocks(132, [1, 500], [3, 4]), 1);
        // No split needs more than two rounds of the 500 panels.
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
                let n_groups = 37usize.div_ceil(shape.panels);
                assert_eq!(blocks, n_groups * rows.div_ceil(of_block), "{format:?}: {shape:?}");
            }
        }
    }

    #[test]
    fn routes_of_an_expert_fit_a_block() {
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
