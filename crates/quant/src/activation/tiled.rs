//! Activations in tiles of rows, for GEMM: `[row block][K / 32]` tiles, each the next 32 columns of the rows of its
//! row block.
//!
//! ```text
//!                  columns 0..32   32..64    ...
//! row block 0     | tile 0       | tile 1  | ...     rows 0 .. ROWS
//! row block 1     | tile K/32    |         | ...     rows ROWS .. 2 ROWS
//! ```

use std::ops::Range;

use bytemuck::Zeroable;
use stonechat_compute::cpu::{MatMut, MatRef};
use stonechat_compute::simd::NullaryFnOnce;
use stonechat_compute::{Cpu, Isa, Parts, with_scratch};

use super::qblock::{QBLOCK_LEN, grow};

/// 32 columns of each row of a row block.
pub(crate) trait RowTile: Zeroable + Copy + Send {
    /// Rows of a tile.
    const ROWS: usize;
    /// The number of row blocks is a multiple of this.
    const ROW_BLOCKS_MULTIPLE: usize;
    /// Tiles of a row block that a thread fills at a time.
    const TASK_TILES: usize;

    /// Fills `tiles` with `rows` of `x`, at most [`ROWS`](Self::ROWS), from column `32 * first` on. Runs in the feature
    /// context of the instruction set.
    fn fill(tiles: &mut [Self], x: MatRef<'_>, rows: Range<usize>, first: usize);
}

/// [`RowTile::fill`] in the feature context of an instruction set.
struct Fill<'a, T> {
    tiles: &'a mut [T],
    x: MatRef<'a>,
    rows: Range<usize>,
    first: usize,
}

impl<T: RowTile> NullaryFnOnce for Fill<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        T::fill(self.tiles, self.x, self.rows, self.first);
    }
}

/// Tiles `[n_row_blocks][n_qblocks]`. The last row block is whole; rows beyond `M` hold any values.
#[derive(Clone, Debug)]
pub(crate) struct TiledRows<T> {
    n_row_blocks: usize,
    n_qblocks: usize,
    tiles: Vec<T>,
}

impl<T> Default for TiledRows<T> {
    fn default() -> Self {
        Self { n_row_blocks: 0, n_qblocks: 0, tiles: Vec::new() }
    }
}

impl<T: RowTile> TiledRows<T> {
    /// Resizes to `[m, k]`, `k` a multiple of 32, and returns the writer. Allocates if the tiles are more than ever
    /// before.
    pub(super) fn writer(&mut self, m: usize, k: usize) -> TiledWriter<'_, T> {
        let multiple = T::ROW_BLOCKS_MULTIPLE;
        self.n_row_blocks = m.div_ceil(T::ROWS * multiple) * multiple;
        self.n_qblocks = k / QBLOCK_LEN;
        grow(&mut self.tiles, self.n_row_blocks * self.n_qblocks);
        let tiles = Parts::new(&mut self.tiles);
        let (n_row_blocks, n_qblocks) = (self.n_row_blocks, self.n_qblocks);
        TiledWriter { n_rows: m, n_row_blocks, n_qblocks, tiles }
    }

    /// Tiles of a row block, `K / 32`.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn n_qblocks(&self) -> usize {
        self.n_qblocks
    }

    /// Tiles `qblocks` of row block `row_block`.
    #[inline(always)]
    pub(crate) fn tiles(&self, row_block: usize, qblocks: Range<usize>) -> &[T] {
        &self.tiles[row_block * self.n_qblocks..(row_block + 1) * self.n_qblocks][qblocks]
    }
}

/// Writes tiles of [`TiledRows`] from several threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TiledWriter<'a, T> {
    n_rows: usize,
    n_row_blocks: usize,
    n_qblocks: usize,
    tiles: Parts<'a, T>,
}

impl<T: RowTile> TiledWriter<'_, T> {
    /// Stores all of `x`.
    pub(super) fn store_all(self, cpu: &Cpu, x: MatRef<'_>) {
        let tasks_per_block = self.n_qblocks.div_ceil(T::TASK_TILES);
        cpu.threads.run(self.n_row_blocks * tasks_per_block, |task| {
            let (block, first) = (task / tasks_per_block, task % tasks_per_block * T::TASK_TILES);
            let qblocks = first..self.n_qblocks.min(first + T::TASK_TILES);
            // SAFETY: each pair of row block and tiles is of one task, and tasks run once.
            unsafe { self.store_row_block(cpu.isa, block, qblocks, (x, first)) };
        });
    }

    /// Stores rows that `fill` computes, a row block at a time.
    pub(super) fn store_rows(self, cpu: &Cpu, fill: &(impl Fn(Range<usize>, MatMut<'_>) + Sync)) {
        let k = self.n_qblocks * QBLOCK_LEN;
        cpu.threads.run(self.n_row_blocks, |block| {
            let first = block * T::ROWS;
            let n = T::ROWS.min(self.n_rows.saturating_sub(first));
            with_scratch(n * k, |values| {
                if n > 0 {
                    fill(first..first + n, MatMut::packed(values, n, k));
                }
                let start = block * self.n_qblocks;
                // SAFETY: each row block is of one task, and tasks run once.
                let tiles = unsafe { self.tiles.part(start..start + self.n_qblocks) };
                let x = MatRef::packed(values, n, k);
                cpu.isa.vectorize(Fill { tiles, x, rows: 0..n, first: 0 });
            });
        });
    }

    /// Stores `x`, columns of all rows, as the tiles from `first` on of all row blocks.
    ///
    /// # Safety
    /// - No other thread reads or writes tiles `first .. first + x.cols / 32` of any row block during the call.
    ///
    /// # Panics
    /// If there are no such tiles.
    pub(super) unsafe fn store(self, isa: Isa, first: usize, x: MatRef<'_>) {
        for block in 0..self.n_row_blocks {
            let qblocks = first..first + x.cols / QBLOCK_LEN;
            // SAFETY: by contract no other thread has these tiles of this row block.
            unsafe { self.store_row_block(isa, block, qblocks, (x, 0)) };
        }
    }

    /// Stores rows of one row block. `from` is the position in `x`, in 32 columns, of the first of tiles `qblocks`.
    ///
    /// # Safety
    /// - No other thread reads or writes tiles `qblocks` of row block `block` during the call.
    unsafe fn store_row_block(
        self,
        isa: Isa,
        block: usize,
        qblocks: Range<usize>,
        (x, from): (MatRef<'_>, usize),
    ) {
        let start = block * self.n_qblocks;
        // SAFETY: by contract no other thread has these tiles.
        let tiles = unsafe { self.tiles.part(start + qblocks.start..start + qblocks.end) };
        let rows = block * T::ROWS..self.n_rows.min((block + 1) * T::ROWS);
        isa.vectorize(Fill { tiles, x, rows, first: from });
    }
}
