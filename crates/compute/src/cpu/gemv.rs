//! GEMV (1 to 48 rows): `C[M,N] = A[M,K] · W[N,K]ᵀ`, every weight read from memory once.
//!
//! ```text
//! in parallel, for each range of columns (a multiple of TILE_COLS):
//!   for each tile of 32 columns:
//!     for each block of its rows of W:             in the L1 cache after the first rows of A
//!       for MB rows of A (at most 6; 3 with 16 registers):
//!         for NB rows of W (8 if M = 1, else 4):
//!           acc[NB][MB] = 0                        in registers
//!           for k in 0..K by LANES: acc[j][m] += W[j][k..] * A[m][k..], prefetch the next NB rows of W
//!           sums[m][j] = horizontal sum of acc[j][m]
//!     C = epilogue(sums)
//! ```

use std::ops::Range;

use super::element::Element;
use super::epilogue::Epilogue;
use super::matrix::{MatRef, SharedMut};
use crate::Cpu;
use crate::aligned::CACHE_LINE;
use crate::scratch::with_scratch;
use crate::simd::{Kernel, Simd, prefetch};

/// Maximum `M`; [`gemm`](super::gemm) takes larger ones.
pub(crate) const MAX_ROWS: usize = 48;
/// Columns whose sums go through the epilogue together.
const TILE_COLS: usize = 32;
/// Bytes of a block of W: a third of a small L1 cache, beside the rows of A.
const BLOCK_BYTES: usize = 16 << 10;
/// Minimum multiplications per task.
const MIN_TASK: usize = 64 << 10;

/// `out = epilogue(x · wᵀ)`: `x[M,K]`, `w[N,K]`, `out[M,N]`, shapes checked by the caller, `M <= MAX_ROWS`.
pub(crate) fn gemv<E: Element>(
    cpu: &Cpu,
    out: SharedMut<'_>,
    x: MatRef<'_>,
    w: &[E],
    epilogue: Epilogue<'_>,
) {
    let tiles = out.cols.div_ceil(TILE_COLS);
    let work = out.cols * x.cols * x.rows;
    let n_tasks = (4 * cpu.threads.n_threads()).min(work / MIN_TASK).clamp(1, tiles.max(1));
    let cols_per_task = tiles.div_ceil(n_tasks) * TILE_COLS;
    cpu.threads.run(out.cols.div_ceil(cols_per_task.max(1)), |task| {
        let first = task * cols_per_task;
        let end = (first + cols_per_task).min(out.cols);
        cpu.isa.dispatch(GemvColumns { out, x, w, w_first: 0, epilogue, first, end });
    });
}

/// [`gemv`] with weights that `dequantize` writes to scratch: rows of a tile of columns, which stay in the second-level
/// cache.
pub(crate) fn gemv_dequantized(
    cpu: &Cpu,
    out: SharedMut<'_>,
    x: MatRef<'_>,
    dequantize: &(dyn Fn(Range<usize>, &mut [f32]) + Sync),
    epilogue: Epilogue<'_>,
) {
    cpu.threads.run(out.cols.div_ceil(TILE_COLS), |task| {
        let first = task * TILE_COLS;
        let end = (first + TILE_COLS).min(out.cols);
        with_scratch((end - first) * x.cols, |w| {
            dequantize(first..end, w);
            let w = &*w;
            cpu.isa.dispatch(GemvColumns { out, x, w, w_first: first, epilogue, first, end });
        });
    });
}

/// Columns `first..end` of `out`.
struct GemvColumns<'a, E> {
    out: SharedMut<'a>,
    x: MatRef<'a>,
    w: &'a [E],
    /// Column of the first row of `w`.
    w_first: usize,
    epilogue: Epilogue<'a>,
    first: usize,
    end: usize,
}

impl<E: Element> Kernel for GemvColumns<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { out, x, w, w_first, epilogue, first, end } = self;
        let k = x.cols;
        let block_cols = (BLOCK_BYTES / (k * size_of::<E>()).max(1)).clamp(8, TILE_COLS) & !7;
        let mut sums = [[0.0; TILE_COLS]; MAX_ROWS];
        for n in (first..end).step_by(TILE_COLS) {
            let n_cols = TILE_COLS.min(end - n);
            for col in (0..n_cols).step_by(block_cols) {
                let cols = col..n_cols.min(col + block_cols);
                let row = n - w_first;
                let w = &w[(row + cols.start) * k..(row + cols.end) * k];
                dot_block(s, w, x, cols, &mut sums);
            }
            for m in 0..x.rows {
                // SAFETY: column ranges of tasks are disjoint, and one span is alive at a time.
                let out = unsafe { out.span(m, n, n_cols) };
                epilogue.finish(s, &sums[m], n, out);
            }
        }
    }
}

/// MB: with NB = 4, the sums, MB vectors of A and one of W just fit into the registers.
const fn max_tile_rows<S: Simd>() -> usize {
    if S::N_REGISTERS >= 32 { 6 } else { 3 }
}

/// `sums[m][cols.start + j] = w[j] · x[m]` for all rows of `w` and `x`.
#[inline(always)]
fn dot_block<S: Simd, E: Element>(
    s: S,
    w: &[E],
    x: MatRef<'_>,
    cols: Range<usize>,
    sums: &mut [[f32; TILE_COLS]; MAX_ROWS],
) {
    let mut m = 0;
    while m < x.rows {
        let left = x.rows - m;
        // The rest of the tiles differ by at most one row.
        let n_rows = left.div_ceil(left.div_ceil(max_tile_rows::<S>()));
        let cols = cols.clone();
        if const { max_tile_rows::<S>() > 3 } && n_rows > 3 {
            match n_rows {
                4 => dot_rows::<S, E, 4, 4>(s, w, x, cols, m, sums),
                5 => dot_rows::<S, E, 4, 5>(s, w, x, cols, m, sums),
                _ => dot_rows::<S, E, 4, 6>(s, w, x, cols, m, sums),
            }
        } else {
            match n_rows {
                1 if x.rows == 1 => dot_rows::<S, E, 8, 1>(s, w, x, cols, m, sums),
                1 => dot_rows::<S, E, 4, 1>(s, w, x, cols, m, sums),
                2 => dot_rows::<S, E, 4, 2>(s, w, x, cols, m, sums),
                _ => dot_rows::<S, E, 4, 3>(s, w, x, cols, m, sums),
            }
        }
        m += n_rows;
    }
}

/// `sums[first_row + m][cols.start + j] = w[j] · x[first_row + m]` for `m < MB` and all rows of `w`, in tiles of `NB`.
#[inline(always)]
fn dot_rows<S: Simd, E: Element, const NB: usize, const MB: usize>(
    s: S,
    w: &[E],
    x: MatRef<'_>,
    cols: Range<usize>,
    first_row: usize,
    sums: &mut [[f32; TILE_COLS]; MAX_ROWS],
) {
    let mut col = cols.start;
    while col < cols.end {
        let w = &w[(col - cols.start) * x.cols..];
        if cols.end - col >= NB {
            dot_tile::<S, E, NB, MB>(s, w, x, col, first_row, sums);
            col += NB;
        } else {
            dot_tile::<S, E, 1, MB>(s, w, x, col, first_row, sums);
            col += 1;
        }
    }
}

/// `sums[first_row + m][col + j] = w[j] · x[first_row + m]` for `j < NB`, `m < MB`.
#[inline(always)]
fn dot_tile<S: Simd, E: Element, const NB: usize, const MB: usize>(
    s: S,
    w: &[E],
    x: MatRef<'_>,
    col: usize,
    first_row: usize,
    sums: &mut [[f32; TILE_COLS]; MAX_ROWS],
) {
    let k_len = x.cols;
    assert!(w.len() >= NB * k_len, "gemv: weights end before the tile does");
    let rows: [&[f32]; MB] = std::array::from_fn(|m| x.row(first_row + m));
    let mut acc = [[s.splat(0.0); MB]; NB];
    let mut k = 0;
    while k + S::LANES <= k_len {
        // Prefetches the next NB rows: NB parallel streams are too many for the hardware prefetcher.
        if first_row == 0 && (k * size_of::<E>()).is_multiple_of(CACHE_LINE) {
            for j in 0..NB {
                prefetch(w.as_ptr().wrapping_add((NB + j) * k_len + k));
            }
        }
        // SAFETY: `k + LANES <= k_len`, the length of each row of `x`; `w` holds `NB` rows of `k_len`, asserted above.
        unsafe {
            let mut xs = [s.splat(0.0); MB];
            for m in 0..MB {
                xs[m] = s.load(rows[m].as_ptr().add(k));
            }
            for j in 0..NB {
                let v = E::load(s, w.as_ptr().add(j * k_len + k));
                for m in 0..MB {
                    acc[j][m] = s.mul_add(v, xs[m], acc[j][m]);
                }
            }
        }
        k += S::LANES;
    }
    // Small loops are unrolled, so that the vectors of `acc` stay in registers.
    let mut totals = [[0.0; MB]; NB];
    for j in 0..NB {
        for m in 0..MB {
            totals[j][m] = s.reduce_sum(acc[j][m]);
        }
    }
    if k < k_len {
        for j in 0..NB {
            for m in 0..MB {
                let products = (k..k_len).map(|i| w[j * k_len + i].widen() * rows[m][i]);
                products.for_each(|product| totals[j][m] += product);
            }
        }
    }
    for m in 0..MB {
        let sums = &mut sums[first_row + m][col..col + NB];
        for j in 0..NB {
            sums[j] = totals[j][m];
        }
    }
}
