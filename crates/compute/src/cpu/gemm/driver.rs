//! Blocking of a GEMM over the threads, and the loops over panels and tiles of a block.

use std::ops::Range;

use super::microkernel::{Operands, max_mr, run_tiles};
use super::pack::{DensePanels, PANEL_VECTORS, pack_panel};
use crate::Cpu;
use crate::cpu::epilogue::Epilogue;
use crate::cpu::matrix::{MatRef, SharedMut};
use crate::scratch::with_scratch;
use crate::simd::{Kernel, Simd};

/// f32 values of packed weights per block: half a megabyte of the L2 cache, beside the rows of `A`.
const PACKED_LEN: usize = 128 << 10;
/// Minimum MC: fewer rows do not repay packing the same weights on another thread.
const MIN_ROWS_PER_TASK: usize = 192;
/// Values of the largest tile: 12 rows of two 16-lane vectors.
const TILE_LEN: usize = 12 * PANEL_VECTORS * 16;

/// Rows of `w[N,K]`.
#[derive(Clone, Copy)]
pub(crate) enum Weights<'a> {
    /// f32 rows without gaps.
    F32(&'a [f32]),
    /// `f(rows, out)` writes rows `rows` to `out` as f32.
    Rows(&'a (dyn Fn(Range<usize>, &mut [f32]) + Sync)),
    /// Panels of the same `N` and `K`.
    Packed(&'a DensePanels),
}

/// `out = epilogue(x · wᵀ)`: `x[M,K]`, `w[N,K]`, `out[M,N]`, shapes checked by the caller.
pub(crate) fn gemm(
    cpu: &Cpu,
    out: SharedMut<'_>,
    x: MatRef<'_>,
    w: Weights<'_>,
    epilogue: Epilogue<'_>,
) {
    let blocking = cpu.isa.dispatch(ChooseBlocking {
        m: x.rows,
        n: out.cols,
        k: x.cols,
        n_threads: cpu.threads.n_threads(),
    });
    let n_blocks = out.cols.div_ceil(blocking.cols);
    let m_blocks = x.rows.div_ceil(blocking.rows);
    cpu.threads.run(n_blocks * m_blocks, |task| {
        let (n, m) = (task / m_blocks * blocking.cols, task % m_blocks * blocking.rows);
        let cols = n..(n + blocking.cols).min(out.cols);
        let rows = m..(m + blocking.rows).min(x.rows);
        with_scratch(blocking.scratch_len, |scratch| {
            cpu.isa.dispatch(GemmBlock { out, x, w, epilogue, rows, cols, scratch });
        });
    });
}

struct Blocking {
    /// MC.
    rows: usize,
    /// NC, a multiple of NR.
    cols: usize,
    /// Packed panels and one panel of dequantized rows.
    scratch_len: usize,
}

struct ChooseBlocking {
    m: usize,
    n: usize,
    k: usize,
    n_threads: usize,
}

impl Kernel for ChooseBlocking {
    type Output = Blocking;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> Blocking {
        let width = PANEL_VECTORS * S::LANES;
        let k = self.k.max(1);
        let target_tasks = 3 * self.n_threads;
        let panels = self.n.div_ceil(width).max(1);
        let in_cache = (PACKED_LEN / (k * width)).max(1);
        let panels_per_block = in_cache.min(panels.div_ceil(target_tasks)).max(1);
        let n_blocks = panels.div_ceil(panels_per_block);
        let m_blocks = target_tasks.div_ceil(n_blocks).min(self.m / MIN_ROWS_PER_TASK).max(1);
        let rows = self.m.div_ceil(m_blocks).next_multiple_of(max_mr::<S>());
        let cols = panels_per_block * width;
        Blocking { rows, cols, scratch_len: (cols + width) * self.k }
    }
}

/// Rows `rows` of columns `cols` of `out`.
struct GemmBlock<'a> {
    out: SharedMut<'a>,
    x: MatRef<'a>,
    w: Weights<'a>,
    epilogue: Epilogue<'a>,
    rows: Range<usize>,
    cols: Range<usize>,
    scratch: &'a mut [f32],
}

impl Kernel for GemmBlock<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { out, x, w, epilogue, rows, cols, scratch } = self;
        let (k, width) = (x.cols, PANEL_VECTORS * S::LANES);
        let panels = cols.len().div_ceil(width);
        let (scratch, rest) = scratch.split_at_mut(panels * width * k);
        for p in 0..panels {
            let n = cols.start + p * width;
            let n_end = (n + width).min(cols.end);
            let panel = &mut scratch[p * width * k..][..width * k];
            match w {
                Weights::F32(w) => pack_panel(panel, &w[n * k..n_end * k], k, width),
                Weights::Rows(fill) => {
                    let block = &mut rest[..(n_end - n) * k];
                    fill(n..n_end, block);
                    pack_panel(panel, block, k, width);
                }
                Weights::Packed(_) => break,
            }
        }
        let packed = match w {
            Weights::Packed(w) => &w.panels_from(cols.start, width)[..panels * width * k],
            Weights::F32(_) | Weights::Rows(_) => scratch,
        };
        let mut sums = [0.0; TILE_LEN];
        for m in rows.clone().step_by(max_mr::<S>()) {
            let n_rows = max_mr::<S>().min(rows.end - m);
            for p in 0..panels {
                let n = cols.start + p * width;
                let n_cols = width.min(cols.end - n);
                let operands = Operands {
                    a: x.data[m * x.stride..].as_ptr(),
                    a_stride: x.stride,
                    b: packed[p * width * k..].as_ptr(),
                    b_stride: width,
                    c: sums.as_mut_ptr(),
                    c_stride: width,
                    k,
                    accumulate: false,
                    prefetch_offset: 0,
                };
                // SAFETY: `x` holds its rows, the panel is `k × width`, and `sums` has room for the largest tile.
                unsafe { run_tiles::<S, f32, PANEL_VECTORS, false>(s, n_rows, operands) };
                for r in 0..n_rows {
                    // SAFETY: blocks are disjoint, and each is one task.
                    let out = unsafe { out.span(m + r, n, n_cols) };
                    epilogue.finish(s, &sums[r * width..][..width], n, out);
                }
            }
        }
    }
}
