//! Weights rearranged so that a vector holds 16 rows: `y[M, N] = x[M, K] * W[N, K]^T` for any number of
//! rows of `x`, with weights that stay in their format's bits.
//!
//! GGML's blocks lie along a row, so that a dot product ends in a sum across lanes and a scale per
//! block and row. Here a panel has 16 rows: 32-bit words of their blocks side by side, in the order of
//! the format's own bytes. Four values of each row then meet four broadcast activations in one
//! instruction, sums never cross lanes, and a scale is a vector. The rearrangement loses nothing:
//! [`PackedMatrix::dequantize_row`] puts a row's blocks together again.

#[cfg(target_arch = "x86_64")]
pub(crate) mod blocks;
mod format;
mod gated;
mod kernel;
mod layout;
mod simd;
#[cfg(target_arch = "x86_64")]
pub(crate) mod tiles;
#[cfg(target_arch = "x86_64")]
pub(crate) mod wide;

use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use stonechat_compute::cpu::{Epilogue, MatMut, SharedMut};
use stonechat_compute::{AlignedVec, Cpu, DType, Isa, Parts};

use crate::activation::{ActivationBuffer, Form};
pub use gated::{PackedRows, gated_packed};
use layout::Layout;
#[cfg(target_arch = "x86_64")]
pub(crate) use layout::has_panels;

/// Rows of a panel.
const PANEL_ROWS: usize = 16;
/// Weight bytes of a task of few rows of `x`: large beside the cost of claiming it, small beside a
/// core's share.
const TASK_BYTES: usize = 64 * 1024;
/// Weight bytes of a task of many rows: they stay in the second-level cache while all rows of `x` pass.
const TASK_BYTES_MANY: usize = 192 * 1024;

/// Tasks of a matrix that each thread should have at least, for an even share.
const MIN_TASKS_PER_THREAD: usize = 3;

/// One word of each row of a panel, a cache line.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
struct Words([u32; PANEL_ROWS]);

/// Weights `[N, K]` in panels.
#[derive(Debug)]
pub struct PackedMatrix {
    layout: &'static Layout,
    n: usize,
    k: usize,
    /// Panels of [`Words`]: block after block. Lone factors of some blocks fill a vector, which comes before their words.
    data: AlignedVec,
}

impl PackedMatrix {
    /// Whether `isa` has a kernel for panels of this format.
    #[must_use]
    pub fn has_kernel(isa: Isa, dtype: DType) -> bool {
        !matches!(isa, Isa::Scalar(_)) && Layout::of(dtype).is_some()
    }

    /// Room for `n` rows of `k` values, `None` if the format has no panels or `k` is no whole number
    /// of blocks. The rows come with [`pack`](Self::pack).
    #[must_use]
    pub fn zeroed(dtype: DType, n: usize, k: usize) -> Option<Self> {
        let layout = Layout::of(dtype)?;
        if !k.is_multiple_of(dtype.block_len()) {
            return None;
        }
        let panel_len = layout.panel_len(k / dtype.block_len());
        let data = AlignedVec::zeroed(n.div_ceil(PANEL_ROWS) * panel_len * PANEL_ROWS);
        Some(Self { layout, n, k, data })
    }

    /// Rearranges whole rows, of which the first is row `first`, a multiple of 16.
    ///
    /// # Panics
    /// If `first` is none or the rows are not the matrix's.
    pub fn pack(&mut self, cpu: &Cpu, first: usize, bytes: &[u8]) {
        let row_bytes = self.row_bytes();
        let rows = bytes.len() / row_bytes;
        assert!(first.is_multiple_of(PANEL_ROWS) && first + rows <= self.n, "pack: no such rows");
        let (layout, n_blocks, panel_len) = (self.layout, self.blocks_per_row(), self.panel_len());
        let panels = first / PANEL_ROWS..(first + rows).div_ceil(PANEL_ROWS);
        let words: &mut [Words] = bytemuck::cast_slice_mut(&mut self.data);
        let out = Parts::new(&mut words[panels.start * panel_len..panels.end * panel_len]);
        cpu.threads.run(panels.len(), |panel| {
            // SAFETY: a panel is of one task.
            let words = unsafe { out.part(panel * panel_len..(panel + 1) * panel_len) };
            let rows = panel * PANEL_ROWS * row_bytes..bytes.len();
            layout.pack_panel(&bytes[rows], n_blocks, words);
        });
    }

    /// The format.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.layout.dtype
    }

    /// Rows, the outputs of a matmul.
    #[must_use]
    pub fn n(&self) -> usize {
        self.n
    }

    /// Elements of a row.
    #[must_use]
    pub fn k(&self) -> usize {
        self.k
    }

    /// Bytes of a row in the format.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.blocks_per_row() * self.layout.block_bytes
    }

    /// Unpacks row `row` into `out`, `[K]`.
    ///
    /// # Panics
    /// If there is no such row or `out` has another length.
    pub fn dequantize_row(&self, isa: Isa, row: usize, out: &mut [f32]) {
        assert!(row < self.n, "dequantize: no such row");
        let panel = self.panel(row / PANEL_ROWS);
        let block_len = self.layout.dtype.block_len();
        let mut bytes = [0; layout::MAX_BLOCK_BYTES];
        let bytes = &mut bytes[..self.layout.block_bytes];
        for (block, values) in out.chunks_exact_mut(block_len).enumerate() {
            self.layout.unpack_block(panel, (row % PANEL_ROWS, block), bytes);
            if let Err(error) = crate::rows::dequantize_rows(isa, self.layout.dtype, bytes, values)
            {
                panic!("{error}");
            }
        }
    }

    fn blocks_per_row(&self) -> usize {
        self.k / self.layout.dtype.block_len()
    }

    fn panel(&self, index: usize) -> &[Words] {
        let vectors: &[Words] = bytemuck::cast_slice(&self.data);
        &vectors[index * self.panel_len()..][..self.panel_len()]
    }

    /// Vectors of a panel.
    fn panel_len(&self) -> usize {
        self.layout.panel_len(self.blocks_per_row())
    }
}

/// A product with some rows of packed weights: `out = epilogue(x * w[rows]^T)`.
#[derive(Debug)]
pub struct PackedProduct<'a> {
    /// `[M, rows.len()]`.
    pub out: MatMut<'a>,
    /// The matrix.
    pub w: &'a PackedMatrix,
    /// Which of its rows.
    pub rows: Range<usize>,
    /// What becomes of the sums.
    pub epilogue: Epilogue<'a>,
}

impl PackedProduct<'_> {
    #[track_caller]
    fn check(&self, x: &ActivationBuffer) {
        let Self { out, w, rows, epilogue } = self;
        assert_eq!(x.cols(), w.k, "matmul: expected activations of K = {}, got {}", w.k, x.cols());
        assert!(rows.end <= w.n, "matmul: rows {rows:?} of {}", w.n);
        assert_eq!((out.rows, out.cols), (x.rows(), rows.len()), "matmul: the output's shape");
        let n_bias = epilogue.bias.map_or(rows.len(), <[f32]>::len);
        assert_eq!(n_bias, rows.len(), "matmul: expected a bias of {}, got {n_bias}", rows.len());
    }

    /// The panels that have the rows.
    fn panels(&self) -> Range<usize> {
        let first = self.rows.start / PANEL_ROWS;
        let end = if self.rows.is_empty() { first } else { self.rows.end.div_ceil(PANEL_ROWS) };
        first..end
    }
}

/// Products of one input, those that there are, as one loop: threads that find nothing left of one take
/// from the next. Allocates nothing.
///
/// Numerics: as [`matmul`](crate::matmul()); the order of the f32 sums differs.
///
/// # Panics
/// If `x` is `[M, K]`, rows not inside their matrix and outputs not `[M, rows.len()]`, or a bias has another
/// length, or the instruction set has no kernel ([`PackedMatrix::has_kernel`]).
#[track_caller]
pub fn matmul_packed<const N: usize>(
    cpu: &Cpu,
    x: &ActivationBuffer,
    products: [Option<PackedProduct<'_>>; N],
) {
    let n_panels = products.iter().flatten().map(|product| product.panels().len()).sum();
    let shares = products.map(|product| {
        let product = product?;
        product.check(x);
        let panels = product.panels();
        let per_task = panels_per_task(cpu, x, n_panels, product.w.panel_len());
        let PackedProduct { out, w, rows, epilogue } = product;
        Some((Task { w, x, panels, rows, out: out.shared(), epilogue }, per_task))
    });
    if x.rows() == 0 {
        return;
    }
    let shares = shares.iter().flatten();
    let n_tasks = |(all, per_task): &(Task<'_>, usize)| all.panels.len().div_ceil(*per_task);
    cpu.threads.run(shares.clone().map(n_tasks).sum(), |mut task| {
        for share in shares.clone() {
            let n = n_tasks(share);
            if task < n {
                let (all, per_task) = share;
                let first = all.panels.start + task * per_task;
                let panels = first..all.panels.end.min(first + per_task);
                return Task { panels, rows: all.rows.clone(), ..*all }.run_on(cpu.isa);
            }
            task -= n;
        }
    });
}

/// How many of `n_panels` panels of so many vectors, both of all matrices together, a task takes.
fn panels_per_task(cpu: &Cpu, x: &ActivationBuffer, n_panels: usize, panel_len: usize) -> usize {
    let n_threads = cpu.threads.n_threads();
    let most = n_panels / (MIN_TASKS_PER_THREAD * n_threads);
    match x.form() {
        Form::Rows => {}
        #[cfg(target_arch = "x86_64")]
        Form::Tiles => return tiles::panels_per_task(most),
        #[cfg(target_arch = "x86_64")]
        Form::Fours | Form::Sixes => return wide::panels_per_task(most),
    }
    let task_bytes = if x.rows() > 8 { TASK_BYTES_MANY } else { TASK_BYTES };
    (task_bytes / (panel_len * size_of::<Words>()).max(1)).min(most).max(1)
}

/// Some panels times all rows of `x`.
struct Task<'a> {
    w: &'a PackedMatrix,
    x: &'a ActivationBuffer,
    panels: Range<usize>,
    /// The rows of `w` that are wanted.
    rows: Range<usize>,
    out: SharedMut<'a>,
    epilogue: Epilogue<'a>,
}

impl Task<'_> {
    fn run_on(&self, isa: Isa) {
        match (isa.of_integers(), self.x.form()) {
            #[cfg(target_arch = "x86_64")]
            (Isa::Amx(token), Form::Tiles) => {
                token.with_tiles(|tiles| self.run_on_tiles(token.vectors(), tiles));
            }
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2(token), Form::Fours) => self.run_wide(token, self.x.fours()),
            #[cfg(target_arch = "x86_64")]
            (Isa::AvxVnni(token), Form::Sixes) => self.run_wide(token, self.x.sixes()),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512Vnni(token), Form::Sixes) => self.run_wide(token, self.x.sixes()),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2(token), Form::Rows) => self.run(token),
            #[cfg(target_arch = "x86_64")]
            (Isa::AvxVnni(token), Form::Rows) => self.run(token),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512Vnni(token), Form::Rows) => self.run(token),
            #[cfg(target_arch = "x86_64")]
            (Isa::Amx(token), Form::Rows) => self.run(token.vectors()),
            #[cfg(target_arch = "aarch64")]
            (Isa::Neon(token), Form::Rows) => self.run(token),
            #[cfg(target_arch = "aarch64")]
            (Isa::NeonDot(token), Form::Rows) => self.run(token),
            #[cfg(target_arch = "aarch64")]
            (Isa::NeonI8mm(token), Form::Rows) => self.run(token.neon_dot()),
            #[cfg(target_arch = "wasm32")]
            (Isa::WasmSimd128(token), Form::Rows) => self.run(token),
            (isa, form) => panic!("matmul: no kernel for panels and {form:?} on {isa}"),
        }
    }
}

#[cfg(test)]
mod tests;
