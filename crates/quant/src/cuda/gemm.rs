//! GEMM: block shapes and launches, see `gemm.cuh` and `gemm_warpgroup.cuh`.

use stonechat_compute::cuda::ops::OPERAND_COLUMNS;
use stonechat_compute::cuda::{CommandList, CudaDevice, Launch};

use super::ARCHIVE;
use super::format::Formats;
use super::gemv::{
    COPY_WARPS, MAX_SHARED_BYTES, STATIC_SHARED_BYTES, TILE_ALIGNMENT, WARPGROUP_PANELS,
};
use super::params::{MatmulParams, MatrixParams};

/// Rows of weights of a block: output columns.
const BLOCK_COLUMNS: usize = 128;
/// Bytes of a row of activations in a tile.
const TILE_ROW_BYTES: usize = 2 * OPERAND_COLUMNS;
/// Maximum stages of chunks of weights.
const MAX_CHUNK_STAGES: usize = 8;
/// Bandwidth of shared memory in bytes per cycle.
const SHARED_BYTES_A_CYCLE: usize = 128;
/// Cycles to start a block, and to store a row of results.
const START_CYCLES: usize = 2000;
const ROW_CYCLES: usize = 24;

/// Shared memory of a block that uses mma: four stages of tiles.
const WARPS_SHARED_BYTES: usize = 4 * 128 * TILE_ROW_BYTES + TILE_ALIGNMENT;

/// Whether blocks of GEMM fit a device. Turing has 64 KiB; there GEMV multiplies any number of rows.
pub(super) fn has_gemm(device: &CudaDevice) -> bool {
    let limit = device.limits.block_shared_bytes;
    device.has_warpgroups() || WARPS_SHARED_BYTES + STATIC_SHARED_BYTES <= limit
}

/// Block shape of a kernel with wgmma.
#[derive(Debug, Clone, Copy)]
struct Rows {
    kernel: &'static str,
    /// Rows of activations.
    n: usize,
    /// Stages of tiles of activations.
    stages: usize,
}

const ROWS: [Rows; 2] = [
    Rows { kernel: "wgmma_128", n: 128, stages: 6 },
    Rows { kernel: "wgmma_256", n: 256, stages: 4 },
];

/// Products of a launch.
#[derive(Debug, Clone, Copy)]
pub(super) struct GemmWork {
    pub(super) rows: usize,
    /// Blocks of rows of weights of all matrices.
    pub(super) n_blocks: usize,
    /// Tiles of columns.
    pub(super) k_tiles: usize,
    /// Bytes of a chunk of 16 rows of weights, of the larger of two formats, and its tiles.
    pub(super) chunk_bytes: usize,
    pub(super) chunk_tiles: usize,
    pub(super) has_two_formats: bool,
}

/// Kernel and launch of a product.
#[derive(Debug, Clone, Copy)]
pub(super) struct GemmShape {
    pub(super) kernel: &'static str,
    /// Stages of chunks of weights.
    pub(super) n_stages: usize,
    /// Rows of a TMA box of activations, for kernels with wgmma.
    pub(super) tma_box_rows: Option<usize>,
    pub(super) launch: Launch,
}

impl GemmShape {
    /// The shape with the least estimated time.
    pub(super) fn new(device: &CudaDevice, work: &GemmWork) -> Self {
        if device.has_warpgroups() {
            Self::of_warpgroups(device.n_multiprocessors as usize, work)
        } else {
            Self {
                kernel: "gemm",
                n_stages: 0,
                tma_box_rows: None,
                launch: Launch {
                    grid: [work.rows.div_ceil(128), work.n_blocks, 1],
                    threads: 256,
                    shared_bytes: WARPS_SHARED_BYTES,
                },
            }
        }
    }

    fn of_warpgroups(n_multiprocessors: usize, work: &GemmWork) -> Self {
        // Pairs of formats have one kernel.
        let rows = if work.has_two_formats { &ROWS[..1] } else { &ROWS[..] };
        let chunk_bytes = WARPGROUP_PANELS * work.chunk_bytes;
        let cycles = |rows: &&Rows| {
            let n_blocks = work.rows.div_ceil(rows.n) * work.n_blocks;
            // Shared memory traffic: activations are written once and read by two warpgroups, weights are read once. wgmma: a row of a
            // tile takes 4 cycles.
            let bytes = 3 * rows.n * TILE_ROW_BYTES + 2 * chunk_bytes / work.chunk_tiles;
            let tile = (4 * rows.n).max(bytes / SHARED_BYTES_A_CYCLE);
            // Measured overhead.
            let tile = tile * 13 / 10;
            let block = START_CYCLES + work.k_tiles * tile + ROW_CYCLES * rows.n;
            n_blocks.div_ceil(n_multiprocessors) * block
        };
        let &Rows { kernel, n, stages } = rows.iter().min_by_key(cycles).expect("shapes");
        let x_bytes = stages * n * TILE_ROW_BYTES + TILE_ALIGNMENT;
        let n_stages = ((MAX_SHARED_BYTES - x_bytes) / chunk_bytes).min(MAX_CHUNK_STAGES);
        Self {
            kernel,
            n_stages,
            tma_box_rows: Some(n),
            launch: Launch {
                grid: [work.rows.div_ceil(n), work.n_blocks, 1],
                threads: 32 * (WARPGROUP_PANELS + COPY_WARPS),
                shared_bytes: x_bytes + n_stages * chunk_bytes,
            },
        }
    }
}

/// Launches GEMM.
pub(super) fn launch_gemm(list: &mut CommandList, formats: Formats, mut params: MatmulParams) {
    let matrices = &params.matrices[..params.n_matrices as usize];
    let blocks = |all: &[MatrixParams]| -> usize {
        all.iter().map(|matrix| (matrix.n as usize).div_ceil(BLOCK_COLUMNS)).sum()
    };
    let of_second = formats.second.map_or(0, |format| format.chunk_bytes);
    let work = GemmWork {
        rows: params.m as usize,
        n_blocks: blocks(matrices),
        k_tiles: params.k_tiles as usize,
        chunk_bytes: formats.first.chunk_bytes.max(of_second),
        chunk_tiles: formats.first.chunk_tiles,
        has_two_formats: formats.second.is_some(),
    };
    params.n_first_blocks = blocks(&matrices[..params.n_first_matrices as usize]) as u32;
    let GemmShape { kernel, n_stages, tma_box_rows, launch } =
        GemmShape::new(list.gpu().device(), &work);
    params.n_stages = n_stages as u32;
    let kernel = list.gpu().kernel(&ARCHIVE, formats.module, kernel, launch.shared_bytes);
    params.launch(list, kernel, launch, tma_box_rows);
}

#[cfg(test)]
mod tests {
    use super::super::format::FORMATS;
    use super::*;

    #[test]
    fn blocks_fit_and_have_two_chunks_of_all_formats() {
        for format in FORMATS {
            for has_two_formats in [false, true] {
                for (rows, n_blocks) in [(129, 1), (512, 48), (1500, 10), (2048, 224)] {
                    let work = GemmWork {
                        rows,
                        n_blocks,
                        k_tiles: 20,
                        chunk_bytes: format.chunk_bytes,
                        chunk_tiles: format.chunk_tiles,
                        has_two_formats,
                    };
                    let shape = GemmShape::of_warpgroups(132, &work);
                    let Launch { grid, shared_bytes, .. } = shape.launch;
                    assert!(shape.n_stages >= 2 && shared_bytes <= MAX_SHARED_BYTES, "{shape:?}");
                    assert!(grid[0] * shape.tma_box_rows.unwrap_or(0) >= rows, "{shape:?}");
                }
            }
        }
    }
}
