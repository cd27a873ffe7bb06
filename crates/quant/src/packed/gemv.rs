//! GEMV (decode): panels times row-major q8 activations on any instruction set; up to 16 rows where there is GEMM.
//!
//! ```text
//! for each panel of 16 weight rows:
//!     acc[M] = 0                                  f32, one lane per weight row
//!     for each weight block:
//!         for each group of N q8 blocks:          Format::unpack
//!             sums[N][M] = -offset * sum(q)       i32, from the activations
//!             for each quad:
//!                 w[N] = 4 unpacked bytes of each row
//!                 sums[n][m] += dot4(w[n], broadcast x[m].quad)
//!             acc[m] += (f32(sums[n][m]) * scale[n]) * x[m].d + min[n] * x[m].sum
//!     y[m][panel] = epilogue(acc[m])
//! ```
//!
//! Weights are streamed once and stay packed; each is unpacked once for `M` rows. `M` is as many rows as have their
//! accumulators in registers: `N * M` integer and `M` float accumulators, `N` weight vectors, 2 or 3 for masks and the
//! broadcast. That is `M` = 8 with 32 registers (2 * 8 + 8 + 2 + 3 = 29) and 4 with 16 (2 * 4 + 4 + 2 + 2); remaining rows
//! are multiplied by 4, 2 and 1.

use std::marker::PhantomData;
use std::ops::Range;

use stonechat_compute::simd::{F32, Int8, NullaryFnOnce, reads_ahead};

use super::format::{Accumulator, Format, LoadQuants, QuantGroups};
use super::panel::PANEL_ROWS;
use super::task::PanelTask;
use crate::activation::{ActivationRow, QBlock};

/// Minimum `M` for which software prefetch is faster on all processors: the work per weight vector is then so long that no
/// hardware prefetcher runs far enough ahead.
const MIN_ROWS_TO_PREFETCH: usize = 4;
/// Q8 blocks of a panel for which the first part of its rows is multiplied before the next part, so that the parts of a
/// cache line are read while it is in the first-level cache.
const PART_QBLOCKS: usize = 8;

impl PanelTask<'_> {
    /// Multiplies all row-major rows of the activations. `Q` is [`Format::QBLOCKS`].
    pub(super) fn gemv<S: Int8, F: Format, const Q: usize>(&self, s: S) {
        let n_rows = self.x.rows();
        let mut row = 0;
        // Multiplies the next `$m` rows with all panels.
        macro_rules! multiply {
            ($m:literal) => {{
                let (task, format) = (self, PhantomData);
                // Later rows find the weights in the caches; with many rows a prefetch too much costs nothing.
                if const { $m < MIN_ROWS_TO_PREFETCH }
                    && (const { !S::HAS_ALL_VARIANTS } || row > 0 || reads_ahead())
                {
                    s.vectorize(Gemv::<S, F, $m, Q, false> { task, s, row, format });
                } else {
                    s.vectorize(Gemv::<S, F, $m, Q, true> { task, s, row, format });
                }
                row += $m;
            }};
        }
        while row < n_rows {
            let n = n_rows - row;
            // The conditions on constants stand alone, so that kernels that no tier runs are not compiled.
            if const { S::GEMV_ROWS >= 8 } && n >= 8 {
                multiply!(8);
            } else if n >= 4 {
                multiply!(4);
            } else if const { S::HAS_ALL_VARIANTS } && n >= 2 {
                multiply!(2);
            } else {
                multiply!(1);
            }
        }
    }
}

/// The kernel for `M` rows and weight blocks of `Q` q8 blocks, with or without software prefetch.
struct Gemv<'a, S, F, const M: usize, const Q: usize, const PREFETCH: bool> {
    task: &'a PanelTask<'a>,
    s: S,
    row: usize,
    format: PhantomData<F>,
}

impl<S: Int8, F: Format, const M: usize, const Q: usize, const PREFETCH: bool> NullaryFnOnce
    for Gemv<'_, S, F, M, Q, PREFETCH>
{
    type Output = ();

    #[inline(always)]
    fn call(self) {
        const { assert!(Q == F::QBLOCKS) };
        let Self { task, s, row, .. } = self;
        let mut x = [task.x.row(row); M];
        for m in 1..M {
            x[m] = task.x.row(row + m);
        }
        let x = Activations::<M, Q>::new(x, task.w.blocks_per_row);
        let n_parts = PANEL_ROWS / S::LANES;
        let at_once = if n_parts == 1 { x.n_blocks } else { PART_QBLOCKS / Q };
        for index in task.panels.clone() {
            let panel = task.w.panel(index);
            let mut sums = [PanelSums([0.0; PANEL_ROWS]); M];
            for first in (0..x.n_blocks).step_by(at_once.max(1)) {
                for part in 0..n_parts {
                    let lanes = part * S::LANES..(part + 1) * S::LANES;
                    let mut of_part = [s.splat(0.0); M];
                    for m in 0..M {
                        // SAFETY: the slice has `LANES` values.
                        of_part[m] = unsafe { s.load(sums[m].0[lanes.clone()].as_ptr()) };
                    }
                    for index in first..x.n_blocks.min(first + at_once) {
                        let block = F::block(panel, index, part).with_prefetch(PREFETCH);
                        // SAFETY: `index < x.n_blocks`.
                        let x = unsafe { x.block(index) };
                        F::unpack(s, block, &mut GemvAccumulator { x, sums: &mut of_part });
                    }
                    for m in 0..M {
                        // SAFETY: the slice has `LANES` values.
                        unsafe { s.store(sums[m].0[lanes.clone()].as_mut_ptr(), of_part[m]) };
                    }
                }
            }
            // A range that starts or ends inside the panel has some of its rows only.
            let all = index * PANEL_ROWS..(index + 1) * PANEL_ROWS;
            let wanted = all.start.max(task.rows.start)..all.end.min(task.rows.end);
            let lanes = wanted.start - all.start..wanted.end - all.start;
            let cols = wanted.start - task.rows.start..wanted.end - task.rows.start;
            for m in 0..M {
                // SAFETY: `row + M <= x.rows()` by the split in `gemv`, `cols` lies in `0..rows.len()`, and
                // `matmul_packed` checked that the output holds all of them; they are this task's alone.
                let out = unsafe { task.out.span(row + m, cols.start, cols.len()) };
                task.epilogue.finish(s, &sums[m].0[lanes.clone()], cols.start, out);
            }
        }
    }
}

/// An f32 of each row of a panel.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct PanelSums([f32; PANEL_ROWS]);

/// `M` rows of activations. Invariant: all rows have `Q * n_blocks` q8 blocks.
struct Activations<'a, const M: usize, const Q: usize> {
    rows: [ActivationRow<'a>; M],
    n_blocks: usize,
}

/// The `Q` q8 blocks of a row that meet one weight block; fields as in [`ActivationRow`].
#[derive(Clone, Copy)]
struct RowBlock<'a, const Q: usize> {
    quants: &'a [QBlock; Q],
    scales: &'a [f32; Q],
    sums32: &'a [f32; Q],
    sums16: &'a [[f32; 2]; Q],
    int_sums: &'a [[i32; 2]; Q],
}

impl<const Q: usize> RowBlock<'_, Q> {
    const ZERO: Self = Self {
        quants: &[QBlock::ZERO; Q],
        scales: &[0.0; Q],
        sums32: &[0.0; Q],
        sums16: &[[0.0; 2]; Q],
        int_sums: &[[0; 2]; Q],
    };
}

impl<'a, const M: usize, const Q: usize> Activations<'a, M, Q> {
    /// # Panics
    /// If a row has less than `Q * n_blocks` q8 blocks.
    #[inline(always)]
    fn new(rows: [ActivationRow<'a>; M], n_blocks: usize) -> Self {
        for row in &rows {
            let n_qblocks = Q * n_blocks;
            assert!(row.quants.len() >= n_qblocks && row.scales.len() >= n_qblocks);
            assert!(row.sums32.len() >= n_qblocks && row.int_sums.len() >= n_qblocks);
            assert!(16 * row.sums16.len() >= 2 * n_qblocks);
        }
        Self { rows, n_blocks }
    }

    /// The activations that weight block `index` is multiplied with.
    ///
    /// # Safety
    /// - `index < self.n_blocks`.
    #[inline(always)]
    unsafe fn block(&self, index: usize) -> [RowBlock<'a, Q>; M] {
        // A loop, since `map` on an array stays a call.
        let mut block = [RowBlock::ZERO; M];
        for m in 0..M {
            let row = &self.rows[m];
            let sums16 = row.sums16.as_flattened().as_flattened().as_chunks::<2>().0;
            // SAFETY: `new` checked that each slice has `n_blocks` chunks of `Q`, and `index` is less.
            block[m] = unsafe {
                RowBlock {
                    quants: row.quants.as_chunks().0.get_unchecked(index),
                    scales: row.scales.as_chunks().0.get_unchecked(index),
                    sums32: row.sums32.as_chunks().0.get_unchecked(index),
                    sums16: sums16.as_chunks().0.get_unchecked(index),
                    int_sums: row.int_sums.as_chunks().0.get_unchecked(index),
                }
            };
        }
        block
    }
}

/// Multiplies groups with the activations of their weight block and adds the products to `sums`.
struct GemvAccumulator<'a, 'x, S: Int8, const M: usize, const Q: usize> {
    x: [RowBlock<'x, Q>; M],
    sums: &'a mut [F32<S>; M],
}

impl<S: Int8, const M: usize, const Q: usize> Accumulator<S> for GemvAccumulator<'_, '_, S, M, Q> {
    #[inline(always)]
    fn accumulate<const N: usize, const BITS: usize>(
        &mut self,
        s: S,
        groups: QuantGroups<S, N>,
        quants: &impl LoadQuants<S, N>,
    ) {
        let QuantGroups { qblocks, quads, offset, scales, mins } = groups;
        let headroom = if BITS == 8 { S::HEADROOM } else { S::HEADROOM << (7 - BITS) };
        let halves = quads.start / 4..quads.end / 4;
        let mut x = [[const { &QBlock::ZERO }; M]; N];
        let mut offsets = [[0; M]; N];
        let mut sums = [[s.start(0); M]; N];
        for n in 0..N {
            for m in 0..M {
                x[n][m] = &self.x[m].quants[qblocks[n]];
                offsets[n][m] = self.offset(m, qblocks[n], halves.clone(), offset);
                sums[n][m] = s.start(offsets[n][m]);
            }
        }
        for quad in quads.clone() {
            let w = quants.load_quants(s, quad);
            let is_full = quad > quads.start && (quad - quads.start).is_multiple_of(headroom);
            for n in 0..N {
                for m in 0..M {
                    if is_full {
                        sums[n][m] = s.widen(sums[n][m]);
                    }
                    let x = x[n][m].quads();
                    sums[n][m] = if BITS == 8 {
                        s.dot4_bytes(sums[n][m], w[n], x, quad)
                    } else {
                        s.dot4_in_chain(sums[n][m], w[n], x, quad)
                    };
                }
            }
        }
        for n in 0..N {
            let qblock = qblocks[n];
            for m in 0..M {
                let products = s.finish(sums[n][m], offsets[n][m]);
                let scaled = s.mul(products, scales[n]);
                let x_scale = s.splat(self.x[m].scales[qblock]);
                self.sums[m] = s.mul_add(scaled, x_scale, self.sums[m]);
            }
            if let Some(mins) = mins {
                for m in 0..M {
                    let x_sum = match halves.len() {
                        2 => self.x[m].sums32[qblock],
                        _ => self.x[m].sums16[qblock][halves.start],
                    };
                    self.sums[m] = s.mul_add(mins[n], s.splat(x_sum), self.sums[m]);
                }
            }
        }
    }
}

impl<S: Int8, const M: usize, const Q: usize> GemvAccumulator<'_, '_, S, M, Q> {
    /// `-offset * sum(q)` over halves of a q8 block of row `m`.
    #[inline(always)]
    fn offset(&self, m: usize, qblock: usize, halves: Range<usize>, offset: i32) -> i32 {
        if offset == 0 {
            return 0;
        }
        -offset * self.x[m].int_sums[qblock][halves].iter().sum::<i32>()
    }
}
