//! Row-major q8 activations, for GEMV: the arrays of each row one after the other.

use std::ops::Range;

use stonechat_compute::cpu::{MatMut, MatRef};
use stonechat_compute::simd::NullaryFnOnce;
use stonechat_compute::{Cpu, Isa, Parts, with_scratch};

use super::qblock::{QBLOCK_LEN, QBLOCKS_PER_256, QBlock, quantize_qblock};

/// Values that a thread quantizes at a time: some microseconds of work.
const TASK_LEN: usize = 16 * 1024;

/// One row of activations: `quants`, `scales`, `sums32` and `int_sums` have an entry per q8 block, `sums16` one per
/// eight.
#[derive(Clone, Copy)]
pub(crate) struct ActivationRow<'a> {
    pub(crate) quants: &'a [QBlock],
    /// `d`, with `x = d * q`.
    pub(crate) scales: &'a [f32],
    /// `d * sum(q)`.
    pub(crate) sums32: &'a [f32],
    /// `d * sum(q)` of each 16 elements of 256.
    pub(crate) sums16: &'a [[[f32; 8]; 2]],
    /// `sum(q)` of each 16 elements.
    pub(crate) int_sums: &'a [[i32; 2]],
}

impl ActivationRow<'_> {
    /// Cuts the row to `n` q8 blocks, so that the compiler knows one length for all slices.
    #[inline(always)]
    pub(crate) fn first_qblocks(self, n: usize) -> Self {
        Self {
            quants: &self.quants[..n],
            scales: &self.scales[..n],
            sums32: &self.sums32[..n],
            sums16: &self.sums16[..n.div_ceil(QBLOCKS_PER_256)],
            int_sums: &self.int_sums[..n],
        }
    }
}

/// Writes rows of a row-major buffer from several threads.
#[derive(Clone, Copy)]
pub(crate) struct RowMajorWriter<'a> {
    pub(super) n_rows: usize,
    /// Q8 blocks of a row without padding.
    pub(super) n_qblocks: usize,
    /// Q8 blocks of a row with padding.
    pub(super) qblocks_per_row: usize,
    pub(super) quants: Parts<'a, QBlock>,
    pub(super) scales: Parts<'a, f32>,
    pub(super) sums32: Parts<'a, f32>,
    pub(super) sums16: Parts<'a, f32>,
    pub(super) int_sums: Parts<'a, [i32; 2]>,
}

impl RowMajorWriter<'_> {
    /// Quantizes all of `x`.
    pub(super) fn store_all(self, cpu: &Cpu, x: MatRef<'_>) {
        self.run_tasks(cpu, x.rows, |rows| {
            let x = x.slice(rows.start, rows.len());
            // SAFETY: each row is of one task, and tasks run once.
            unsafe { self.store_rows_from(cpu.isa, rows.start, 0, x) };
        });
    }

    /// Quantizes rows that `fill` computes, a task's at a time.
    pub(super) fn store_rows(self, cpu: &Cpu, fill: &(impl Fn(Range<usize>, MatMut<'_>) + Sync)) {
        let k = self.n_qblocks * QBLOCK_LEN;
        self.run_tasks(cpu, self.n_rows, |rows| {
            with_scratch(rows.len() * k, |values| {
                fill(rows.clone(), MatMut::packed(values, rows.len(), k));
                let x = MatRef::packed(values, rows.len(), k);
                // SAFETY: each row is of one task, and tasks run once.
                unsafe { self.store_rows_from(cpu.isa, rows.start, 0, x) };
            });
        });
    }

    /// Runs `task` for ranges of all rows.
    fn run_tasks(self, cpu: &Cpu, n_rows: usize, task: impl Fn(Range<usize>) + Sync) {
        let per_task = (TASK_LEN / (self.n_qblocks * QBLOCK_LEN).max(1)).max(1);
        cpu.threads.run(n_rows.div_ceil(per_task), |i| {
            task(i * per_task..n_rows.min((i + 1) * per_task));
        });
    }

    /// Quantizes `x`, columns of all rows, to the q8 blocks from `first` on.
    ///
    /// # Safety
    /// As for [`store_rows_from`](Self::store_rows_from) with row 0.
    pub(super) unsafe fn store(self, isa: Isa, first: usize, x: MatRef<'_>) {
        // SAFETY: the contract is the same.
        unsafe { self.store_rows_from(isa, 0, first, x) };
    }

    /// Quantizes `x` to the q8 blocks from `first` on of the rows from `row` on. The last q8 block of a row also
    /// zeroes the row's padding.
    ///
    /// # Safety
    /// - No other thread reads or writes q8 blocks `first .. first + x.cols / 32` of rows `row .. row + x.rows`
    ///   during the call.
    /// - No other thread reads or writes the padding of these rows, if `x` has their last q8 block.
    ///
    /// # Panics
    /// If there are no such rows or q8 blocks.
    unsafe fn store_rows_from(self, isa: Isa, row: usize, first: usize, x: MatRef<'_>) {
        let end = first + x.cols / QBLOCK_LEN;
        let end = if end == self.n_qblocks { self.qblocks_per_row } else { end };
        for r in 0..x.rows {
            let start = (row + r) * self.qblocks_per_row;
            let qblocks = start + first..start + end;
            // SAFETY: by contract no other thread has these q8 blocks, and each `r` has other ones.
            let mut row = unsafe {
                QuantizeRow {
                    x: x.row(r).as_chunks().0,
                    quants: self.quants.part(qblocks.clone()),
                    scales: self.scales.part(qblocks.clone()),
                    sums32: self.sums32.part(qblocks.clone()),
                    sums16: self.sums16.part(2 * qblocks.start..2 * qblocks.end),
                    int_sums: self.int_sums.part(qblocks),
                }
            };
            row.zero_padding();
            isa.vectorize(row);
        }
    }
}

struct QuantizeRow<'a> {
    x: &'a [[f32; QBLOCK_LEN]],
    quants: &'a mut [QBlock],
    scales: &'a mut [f32],
    sums32: &'a mut [f32],
    sums16: &'a mut [f32],
    int_sums: &'a mut [[i32; 2]],
}

impl QuantizeRow<'_> {
    /// Zeroes the q8 blocks after the last one of `x`. No weights are multiplied with their `sums16`.
    fn zero_padding(&mut self) {
        let n = self.x.len();
        self.quants[n..].fill(QBlock::ZERO);
        self.scales[n..].fill(0.0);
        self.sums32[n..].fill(0.0);
        self.int_sums[n..].fill([0; 2]);
    }
}

impl NullaryFnOnce for QuantizeRow<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for i in 0..self.x.len() {
            let (scale, quants, sums) = quantize_qblock(&self.x[i]);
            self.quants[i] = quants;
            self.int_sums[i] = sums;
            self.scales[i] = scale;
            self.sums32[i] = scale * (sums[0] + sums[1]) as f32;
            self.sums16[2 * i] = scale * sums[0] as f32;
            self.sums16[2 * i + 1] = scale * sums[1] as f32;
        }
    }
}
