//! Matrix product for few rows: every weight is read from memory once.

use super::element::Element;
use super::epilogue::Epilogue;
use super::matrix::{MatRef, SharedMut};
use crate::Cpu;
use crate::aligned::CACHE_LINE;
use crate::simd::{Kernel, Simd, prefetch};

/// Most rows of `x` that this is meant for.
pub(crate) const MAX_ROWS: usize = 16;
/// Outputs whose sums are finished together.
const TILE_COLS: usize = 32;
/// Multiplications that are worth another task.
const MIN_TASK: usize = 64 << 10;

/// `out = epilogue(x · wᵀ)`; shapes were checked by the caller, `x.rows <= MAX_ROWS`.
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
        cpu.isa.dispatch(Columns { out, x, w, epilogue, first, end });
    });
}

struct Columns<'a, E> {
    out: SharedMut<'a>,
    x: MatRef<'a>,
    w: &'a [E],
    epilogue: Epilogue<'a>,
    first: usize,
    end: usize,
}

impl<E: Element> Kernel for Columns<'_, E> {
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
                    dots::<S, E, 8, 1>(s, rows, x, j, 0, &mut sums);
                    8
                } else if left >= 4 {
                    dots_of_all_rows::<S, E, 4>(s, rows, x, j, &mut sums);
                    4
                } else {
                    dots_of_all_rows::<S, E, 1>(s, rows, x, j, &mut sums);
                    1
                };
            }
            for m in 0..x.rows {
                // SAFETY: this task alone writes these columns.
                let out = unsafe { out.span(m, n, n_cols) };
                epilogue.finish(s, &sums[m], n, out);
            }
        }
    }
}

#[inline(always)]
fn dots_of_all_rows<S: Simd, E: Element, const NB: usize>(
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
            dots::<S, E, NB, 4>(s, w, x, col, m, sums);
            4
        } else if left >= 2 {
            dots::<S, E, NB, 2>(s, w, x, col, m, sums);
            2
        } else {
            dots::<S, E, NB, 1>(s, w, x, col, m, sums);
            1
        };
    }
}

/// `sums[first_row + m][col + j] = w[j] · x[first_row + m]` for `j < NB`, `m < MB`.
#[inline(always)]
fn dots<S: Simd, E: Element, const NB: usize, const MB: usize>(
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
        // The rows that come next; several at a time are too many streams for the processor to foresee.
        if first_row == 0 && (k * size_of::<E>()).is_multiple_of(CACHE_LINE) {
            for j in 0..NB {
                prefetch(w.as_ptr().wrapping_add((NB + j) * k_len + k));
            }
        }
        // SAFETY: `k + LANES <= k_len`, which is the length of each row of `x`; `w` holds `NB`
        // rows of `k_len`, asserted above.
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
