//! Matrix product for few rows: every weight is read from memory once.

use super::element::Element;
use super::epilogue::Epilogue;
use super::matrix::{MatRef, SharedMut};
use crate::Cpu;
use crate::aligned::CACHE_LINE;
use crate::simd::{Kernel, Simd, prefetch, prefetch_line};

/// Most rows of `x` that this is meant for.
pub(crate) const MAX_ROWS: usize = 16;
/// Outputs whose sums are finished together.
const TILE_COLS: usize = 32;
/// How far ahead of a single row's products weights are asked for, in bytes.
const PREFETCH_BYTES: usize = 128 * CACHE_LINE;
/// Vectors of a single row that have sums of their own, so that additions do not wait for each other.
const SUMS_OF_ROW: usize = 4;
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
                j += if x.rows == 1 {
                    sums[0][j] = dot(s, rows, x.row(0));
                    1
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

/// `w · x` with the first row of `w`. One row after the other is the order in which memory gives most: eight rows at a
/// time, each asked for before, were read at 25 GB/s by a thread of Zen 5, which this does at 36; Sapphire Rapids makes
/// no difference.
#[inline(always)]
fn dot<S: Simd, E: Element>(s: S, w: &[E], x: &[f32]) -> f32 {
    let k_len = x.len();
    assert!(w.len() >= k_len, "gemv: weights end before the row does");
    let mut acc = [s.splat(0.0); SUMS_OF_ROW];
    let mut k = 0;
    while k + SUMS_OF_ROW * S::LANES <= k_len {
        let mut at = 0;
        while at < SUMS_OF_ROW * S::LANES {
            prefetch_line(w.as_ptr().wrapping_add(k + at + PREFETCH_BYTES / size_of::<E>()));
            at += CACHE_LINE / size_of::<E>();
        }
        for i in 0..SUMS_OF_ROW {
            // SAFETY: all vectors end in both slices, by the loop's condition and the assertion.
            unsafe {
                let v = E::load(s, w.as_ptr().add(k + i * S::LANES));
                acc[i] = s.mul_add(v, s.load(x.as_ptr().add(k + i * S::LANES)), acc[i]);
            }
        }
        k += SUMS_OF_ROW * S::LANES;
    }
    while k + S::LANES <= k_len {
        // SAFETY: as above, of one vector.
        unsafe {
            acc[0] = s.mul_add(E::load(s, w.as_ptr().add(k)), s.load(x.as_ptr().add(k)), acc[0]);
        }
        k += S::LANES;
    }
    let mut sum = s.reduce_sum(s.add(s.add(acc[0], acc[1]), s.add(acc[2], acc[3])));
    for i in k..k_len {
        sum += w[i].widen() * x[i];
    }
    sum
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
