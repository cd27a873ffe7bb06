//! GEMV (1 to 48 rows): `C[M,N] = A[M,K] · W[N,K]ᵀ`, every weight read from memory once.
//!
//! ```text
//! in parallel, for each range of columns (a multiple of TILE_COLS):
//!   for each tile of 32 columns:
//!     for NB rows of W (8 if M = 1, else 4):       from memory
//!       for MB rows of A (4 or 2):                 W from cache after the first
//!         acc[NB][MB] = 0                          in registers
//!         for k in 0..K by LANES: acc[j][m] += W[j][k..] * A[m][k..], prefetch the next NB rows of W
//!         sums[m][j] = horizontal sum of acc[j][m]
//!     C = epilogue(sums)
//! ```

use super::element::Element;
use super::epilogue::Epilogue;
use super::matrix::{MatRef, SharedMut};
use crate::Cpu;
use crate::aligned::CACHE_LINE;
use crate::simd::{Kernel, Simd, prefetch};

/// Maximum `M`; [`gemm`](super::gemm) takes larger ones.
pub(crate) const MAX_ROWS: usize = 48;
/// Columns whose sums go through the epilogue together.
const TILE_COLS: usize = 32;
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
        cpu.isa.dispatch(GemvColumns { out, x, w, epilogue, first, end });
    });
}

/// Columns `first..end` of `out`.
struct GemvColumns<'a, E> {
    out: SharedMut<'a>,
    x: MatRef<'a>,
    w: &'a [E],
    epilogue: Epilogue<'a>,
    first: usize,
    end: usize,
}

impl<E: Element> Kernel for GemvColumns<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { out, x, w, epilogue, first, end } = self;
        let k = x.cols;
        let mut sums = [[0.0; TILE_COLS]; MAX_ROWS];
        for n in (first..end).step_by(TILE_COLS) {
            let n_cols = TILE_COLS.min(end - n);
            let mut j = 0;
            while j < n_cols {
                let rows = &w[(n + j) * k..(n + n_cols) * k];
                let left = n_cols - j;
                j += if x.rows == 1 && left >= 8 {
                    dot_tile::<S, E, 8, 1>(s, rows, x, j, 0, &mut sums);
                    8
                } else if left >= 4 {
                    dot_columns::<S, E, 4>(s, rows, x, j, &mut sums);
                    4
                } else {
                    dot_columns::<S, E, 1>(s, rows, x, j, &mut sums);
                    1
                };
            }
            for m in 0..x.rows {
                // SAFETY: column ranges of tasks are disjoint, and one span is alive at a time.
                let out = unsafe { out.span(m, n, n_cols) };
                epilogue.finish(s, &sums[m], n, out);
            }
        }
    }
}

/// `sums[m][col + j] = w[j] · x[m]` for `j < NB` and every row `m`.
#[inline(always)]
fn dot_columns<S: Simd, E: Element, const NB: usize>(
    s: S,
    w: &[E],
    x: MatRef<'_>,
    col: usize,
    sums: &mut [[f32; TILE_COLS]; MAX_ROWS],
) {
    let mut m = 0;
    while m < x.rows {
        let left = x.rows - m;
        m += if S::N_REGISTERS >= 32 && left >= 4 {
            dot_tile::<S, E, NB, 4>(s, w, x, col, m, sums);
            4
        } else if left >= 2 {
            dot_tile::<S, E, NB, 2>(s, w, x, col, m, sums);
            2
        } else {
            dot_tile::<S, E, NB, 1>(s, w, x, col, m, sums);
            1
        };
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
    for j in 0..NB {
        for m in 0..MB {
            let mut sum = s.reduce_sum(acc[j][m]);
            for i in k..k_len {
                sum += w[j * k_len + i].widen() * rows[m][i];
            }
            sums[first_row + m][col + j] = sum;
        }
    }
}
