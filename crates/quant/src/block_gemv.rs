//! GEMV on weights in GGML's block order: `y[M, N] = x[M, K] * W[N, K]^T` with few rows of `x`, for formats without panels.
//!
//! ```text
//! for each 32 weight rows:                    TILE_COLS; stay in the first-level cache
//!     for each 4 rows of x, else 1:           TILE_ROWS
//!         for each weight row:
//!             sums[4] = dot(w, x[4])          dot.rs
//!     y[4][32] = epilogue(sums)
//! ```
//!
//! For many rows (prefill, encoder) a dense GEMM over [`dequantize_rows`](crate::dequantize_rows) is faster. That path
//! also multiplies all other formats that are not packed (`--repack off`).

use std::ops::Range;

use stonechat_compute::check_eq;
use stonechat_compute::cpu::{Epilogue, MatMut, SharedMut};
use stonechat_compute::simd::{Int8, Int8Kernel, NullaryFnOnce, RowInt8, Token};
use stonechat_compute::{Cpu, DType, Isa};

use crate::activation::{ActivationBuffer, ActivationLayout};
use crate::block::{self, Block, RowBlock, block_formats};
use crate::dot::dot;
use crate::error::{Error, Result};

/// Rows of `x` that are multiplied with a weight row at a time; fewer are multiplied one by one.
const TILE_ROWS: usize = 4;
/// Output columns that go through the epilogue together.
const TILE_COLS: usize = 32;
/// Weight bytes of a task: large beside the cost of claiming it, small beside a core's share.
const TASK_BYTES: usize = 32 * 1024;

/// Evaluates `$row` with `$B` the block type of a dtype with row dots, else `$other`.
macro_rules! row_arms {
    ([$dtype:expr, $B:ident => $row:expr, $other:expr]
        panels $panels:tt
        rows { $($row_type:ident: $R:ident $r:tt;)* }
        codebooks { $($codebook:ident: $C:ident $c:tt;)* }
        activations $activations:tt
    ) => {
        match $dtype {
            $(DType::$row_type => { type $B = block::$R; $row })*
            $(DType::$codebook => { type $B = block::$C; $row })*
            _ => $other,
        }
    };
}

/// Weights `[N, K]`, row-major, in a block format.
#[derive(Clone, Copy, Debug)]
pub struct QuantMatrix<'a> {
    dtype: DType,
    n: usize,
    k: usize,
    bytes: &'a [u8],
}

impl<'a> QuantMatrix<'a> {
    /// View of `bytes`, of any alignment.
    ///
    /// # Errors
    /// If weights have no such format ([`holds`](Self::holds)), `k` is no multiple of its block length, or `bytes` has
    /// another length than `n` rows.
    pub fn new(dtype: DType, n: usize, k: usize, bytes: &'a [u8]) -> Result<Self> {
        if !Self::holds(dtype) {
            let expected = "the block formats of weights";
            return Err(Error::Unsupported { op: "matmul", expected, dtype });
        }
        let Some(row_bytes) = dtype.bytes_for(k) else {
            return Err(Error::RowLen { dtype, block_len: dtype.block_len(), k });
        };
        let expected = row_bytes.saturating_mul(n);
        if expected != bytes.len() {
            return Err(Error::Len { dtype, what: "bytes", expected, got: bytes.len() });
        }
        Ok(Self { dtype, n, k, bytes })
    }

    /// Whether the type is a block format of weights.
    #[must_use]
    pub fn holds(dtype: DType) -> bool {
        dtype.is_quantized() && !matches!(dtype, DType::Q8_1 | DType::Q8K)
    }

    /// Whether [`gemv_blocks`] works on this type: a block format without panels.
    #[must_use]
    pub fn has_kernel(dtype: DType) -> bool {
        block_formats!(row_arms[dtype, B => <B as Block>::DTYPE == dtype, false])
    }

    /// The format.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Dequantizes rows into `out`, `[rows.len(), K]`.
    ///
    /// # Panics
    /// If there are no such rows or `out` has another length.
    pub fn dequantize_rows(&self, isa: Isa, rows: Range<usize>, out: &mut [f32]) {
        let row_bytes = self.bytes.len() / self.n.max(1);
        let bytes = &self.bytes[rows.start * row_bytes..rows.end * row_bytes];
        if let Err(error) = crate::rows::dequantize_rows(isa, self.dtype, bytes, out) {
            panic!("{error}");
        }
    }
}

/// The kernel that [`gemv_blocks`] runs for `dtype` on `isa`, for logs and benches.
#[must_use]
pub fn kernel_name(isa: Isa, dtype: DType) -> String {
    struct Name;
    impl Int8Kernel for Name {
        type Output = &'static str;

        fn run<S: Int8>(self, _: S) -> &'static str {
            S::NAME
        }
    }
    format!("{dtype}-rows-{}", isa.dispatch_int8(Name))
}

/// `out = epilogue(x * w^T)`. Allocates nothing.
///
/// Numerics: products are exact integers within 32 elements, sums f32; against the same product
/// in f64 of the quantized activations the error is a few f32 roundings of the terms' magnitudes.
///
/// # Panics
/// If the format has no kernel ([`QuantMatrix::has_kernel`]), `x` is `[M, K]`, `w` `[N, K]` and `out` `[M, N]` do not
/// agree, or the bias is not `[N]`.
#[track_caller]
pub fn gemv_blocks(
    cpu: &Cpu,
    out: MatMut<'_>,
    x: &ActivationBuffer,
    w: QuantMatrix<'_>,
    epilogue: Epilogue<'_>,
) {
    let layout = x.layout();
    check_eq!(layout, ActivationLayout::RowMajor, "gemv_blocks: layout of the activations");
    check_eq!(x.cols(), w.k, "gemv_blocks: K of the activations");
    check_eq!((out.rows, out.cols), (x.rows(), w.n), "gemv_blocks: shape of the output");
    let n_bias = epilogue.bias.map_or(w.n, <[f32]>::len);
    check_eq!(n_bias, w.n, "gemv_blocks: values of the bias");
    block_formats!(row_arms[
        w.dtype,
        B => split::<B>(cpu, out, x, w, epilogue),
        panic!("gemv_blocks: expected a format with row dots, got {}", w.dtype)
    ]);
}

/// Splits the output columns into tasks.
fn split<B: RowBlock>(
    cpu: &Cpu,
    out: MatMut<'_>,
    x: &ActivationBuffer,
    w: QuantMatrix<'_>,
    epilogue: Epilogue<'_>,
) {
    if w.n == 0 || out.rows == 0 {
        return;
    }
    let shared = out.shared();
    let row_bytes = w.bytes.len() / w.n;
    let task_cols = (TASK_BYTES / row_bytes.max(1)).next_multiple_of(TILE_COLS).max(TILE_COLS);
    let blocks = bytemuck::cast_slice::<u8, B>(w.bytes);
    cpu.threads.run(w.n.div_ceil(task_cols), |task| {
        let cols = task * task_cols..w.n.min((task + 1) * task_cols);
        let blocks_per_row = w.k / B::BLOCK_LEN;
        let task = RowTask { blocks, blocks_per_row, x, cols, out: shared, epilogue };
        cpu.isa.dispatch_int8(task);
    });
}

/// Columns `cols` of the output.
struct RowTask<'a, B> {
    blocks: &'a [B],
    blocks_per_row: usize,
    x: &'a ActivationBuffer,
    cols: Range<usize>,
    out: SharedMut<'a>,
    epilogue: Epilogue<'a>,
}

impl<B: RowBlock> Int8Kernel for RowTask<'_, B> {
    type Output = ();

    fn run<S: Int8>(self, s: S) {
        let s = s.narrow();
        s.vectorize(InContext(self, s));
    }
}

struct InContext<'a, B, S>(RowTask<'a, B>, S);

impl<B: RowBlock, S: RowInt8> NullaryFnOnce for InContext<'_, B, S> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self(task, s) = self;
        let n_rows = task.x.rows();
        for first in task.cols.clone().step_by(TILE_COLS) {
            let cols = first..task.cols.end.min(first + TILE_COLS);
            let mut row = 0;
            while row < n_rows {
                if n_rows - row < TILE_ROWS {
                    task.tile::<S, 1>(s, row, cols.clone());
                    row += 1;
                } else {
                    task.tile::<S, TILE_ROWS>(s, row, cols.clone());
                    row += TILE_ROWS;
                }
            }
        }
    }
}

impl<B: RowBlock> RowTask<'_, B> {
    /// Multiplies rows `row .. row + M` of `x` with at most [`TILE_COLS`] weight rows.
    #[inline(always)]
    fn tile<S: RowInt8, const M: usize>(&self, s: S, row: usize, cols: Range<usize>) {
        let mut x = [self.x.row(row); M];
        for m in 1..M {
            x[m] = self.x.row(row + m);
        }
        let mut sums = [[0.0f32; TILE_COLS]; M];
        for (i, n) in cols.clone().enumerate() {
            let w = &self.blocks[n * self.blocks_per_row..][..self.blocks_per_row];
            let dots = dot(s, w, &x);
            for m in 0..M {
                sums[m][i] = dots[m];
            }
        }
        for m in 0..M {
            // SAFETY: `row + M <= x.rows()` by the split in `call`, `cols` lies in `0..N`, and
            // `matmul` checked that the output is `x.rows()` by `N`; columns belong to this task
            // alone.
            let out = unsafe { self.out.span(row + m, cols.start, cols.len()) };
            self.epilogue.finish(s, &sums[m], cols.start, out);
        }
    }
}
