//! Row-major q8 activations, for GEMV: the arrays of each row one after the other.

use stonechat_compute::cpu::MatRef;
use stonechat_compute::simd::NullaryFnOnce;
use stonechat_compute::{Isa, Parts};

use super::QBLOCKS_PER_256;
use super::qblock::{QBLOCK_LEN, QBlock, quantize_qblock};

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
    pub(super) unsafe fn store(self, isa: Isa, row: usize, first: usize, x: MatRef<'_>) {
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
    /// Zeroes the q8 blocks behind those of `x`. Their `sums16` are multiplied with no weights.
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
