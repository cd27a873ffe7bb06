//! Inputs in the order in which a kernel for many rows wants them: blocks of rows, unit by unit.

use std::ops::Range;

use bytemuck::Zeroable;
use stonechat_compute::cpu::MatRef;
use stonechat_compute::simd::NullaryFnOnce;
use stonechat_compute::{Cpu, Isa, Parts};

use crate::activation::{UNIT_LEN, grow};

/// 32 values of each row of a block.
pub(crate) trait UnitOfBlock: Zeroable + Copy + Send {
    /// Rows of a block.
    const ROWS: usize;
    /// There are a multiple of so many blocks.
    const BLOCKS: usize;
    /// Units of a block that a thread fills at a time.
    const PIECE: usize;

    /// Takes `rows` of `x`, at most [`ROWS`](Self::ROWS), whose unit `from` is the first of `units`; called
    /// where the instruction set's features are on.
    fn fill(units: &mut [Self], x: MatRef<'_>, rows: Range<usize>, from: usize);
}

/// Takes rows where the features of the instruction set are on.
struct Fill<'a, T> {
    units: &'a mut [T],
    x: MatRef<'a>,
    rows: Range<usize>,
    from: usize,
}

impl<T: UnitOfBlock> NullaryFnOnce for Fill<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        T::fill(self.units, self.x, self.rows, self.from);
    }
}

/// All units of a block one after the other, then those of the next block.
#[derive(Clone, Debug)]
pub(crate) struct Blocks<T> {
    n_blocks: usize,
    n_units: usize,
    units: Vec<T>,
}

impl<T> Default for Blocks<T> {
    fn default() -> Self {
        Self { n_blocks: 0, n_units: 0, units: Vec::new() }
    }
}

impl<T: UnitOfBlock> Blocks<T> {
    /// Room for `m` rows of `k` values, a multiple of 32. Allocates when there are more than ever before.
    pub(crate) fn room(&mut self, m: usize, k: usize) -> BlockRoom<'_, T> {
        (self.n_blocks, self.n_units) = (m.div_ceil(T::ROWS * T::BLOCKS) * T::BLOCKS, k / UNIT_LEN);
        grow(&mut self.units, self.n_blocks * self.n_units);
        let units = Parts::new(&mut self.units);
        BlockRoom { n_rows: m, n_blocks: self.n_blocks, n_units: self.n_units, units }
    }

    /// Units of a block.
    pub(super) fn n_units(&self) -> usize {
        self.n_units
    }

    /// Units `units` of block `block`.
    #[inline(always)]
    pub(super) fn block(&self, block: usize, units: Range<usize>) -> &[T] {
        &self.units[block * self.n_units..(block + 1) * self.n_units][units]
    }
}

/// [`Blocks`] while several threads write parts of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockRoom<'a, T> {
    n_rows: usize,
    n_blocks: usize,
    n_units: usize,
    units: Parts<'a, T>,
}

impl<T: UnitOfBlock> BlockRoom<'_, T> {
    /// Takes all rows.
    pub(crate) fn put_all(self, cpu: &Cpu, x: MatRef<'_>) {
        let pieces = self.n_units.div_ceil(T::PIECE);
        cpu.threads.run(self.n_blocks * pieces, |task| {
            let (block, first) = (task / pieces, task % pieces * T::PIECE);
            let units = first..self.n_units.min(first + T::PIECE);
            // SAFETY: these units of a block are of one task.
            unsafe { self.put_block(cpu.isa, block, units, (x, first)) };
        });
    }

    /// Takes columns of all rows, from unit `first` on.
    ///
    /// # Safety
    /// Nobody else has these units at the same time.
    pub(crate) unsafe fn put(self, isa: Isa, first: usize, x: MatRef<'_>) {
        for block in 0..self.n_blocks {
            let units = first..first + x.cols / UNIT_LEN;
            // SAFETY: units of different blocks are different, and these are the caller's.
            unsafe { self.put_block(isa, block, units, (x, 0)) };
        }
    }

    /// Takes a block of rows of `x`, which has the values of the first of `units` at its own unit `from`.
    ///
    /// # Safety
    /// Nobody else has these units of the block.
    unsafe fn put_block(
        self,
        isa: Isa,
        block: usize,
        units: Range<usize>,
        (x, from): (MatRef<'_>, usize),
    ) {
        let start = block * self.n_units;
        // SAFETY: the caller vouches for them.
        let units = unsafe { self.units.part(start + units.start..start + units.end) };
        let rows = block * T::ROWS..self.n_rows.min((block + 1) * T::ROWS);
        isa.vectorize(Fill { units, x, rows, from });
    }
}
