//! Packed weights: `y[M, N] = x[M, K] * W[N, K]^T` for any `M`, with `W` in panels of 16 rows.
//!
//! GGML's blocks lie along a row, so that a dot product ends in a sum across lanes and a scale per block and row. A panel
//! has the 32-bit words of the blocks of 16 rows side by side:
//!
//! ```text
//! [N, K] in GGML's blocks                     panel of rows 0..16: U32x16 vectors
//!   row 0:  w00 w01 w02 ...                     | w00 w10 w20 ... wf0 |
//!   row 1:  w10 w11 w12 ...                     | w01 w11 w21 ... wf1 |
//!   ...                                         | ...                 |
//!   row 15: wf0 wf1 wf2 ...
//! ```
//!
//! Four quants of each row meet four broadcast activations in one instruction, sums never cross lanes, and scales are a
//! vector. Packing loses nothing: [`PackedMatrix::dequantize_row`] restores the row's blocks.
//!
//! | module | holds |
//! |---|---|
//! | `layout`, `block` | positions of a block in a panel; loads with prefetch |
//! | `format` | unpacking of each format |
//! | `simd` | integer vectors of each instruction set |
//! | `gemv` | row-major `x` on every instruction set: up to 16 rows on x86-64 (decode), else any number |
//! | `gemm` | more rows (prefill) on x86-64 |
//! | `amx` | more rows on AMX tiles |
//! | `gated` | gate and up projections of a gated MLP as one loop |

#[cfg(target_arch = "x86_64")]
mod amx;
mod block;
mod format;
mod gated;
#[cfg(target_arch = "x86_64")]
mod gemm;
mod gemv;
mod layout;
mod simd;

use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use stonechat_compute::cpu::{Epilogue, MatMut, SharedMut};
use stonechat_compute::{AlignedVec, Cpu, DType, Isa, Parts};

use crate::activation::{ActivationBuffer, ActivationLayout};
pub use gated::{PackedRows, gated_packed};
use layout::Layout;
#[cfg(target_arch = "x86_64")]
pub(crate) use layout::has_panels;

/// Rows of a panel.
const PANEL_ROWS: usize = 16;
/// Weight bytes of a GEMV task for up to 8 rows of `x`: large beside the cost of claiming it, small beside a
/// core's share.
const TASK_BYTES: usize = 64 * 1024;
/// Weight bytes of a GEMV task for more rows: they stay in the second-level cache while all rows of `x` pass.
const TASK_BYTES_MANY_ROWS: usize = 192 * 1024;

/// Tasks of a matrix that each thread should have at least, for an even share.
const MIN_TASKS_PER_THREAD: usize = 3;

/// 32 bits of each row of a panel: a cache line.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
struct U32x16([u32; PANEL_ROWS]);

/// Weights `[N, K]` in panels.
#[derive(Debug)]
pub struct PackedMatrix {
    layout: &'static Layout,
    n: usize,
    k: usize,
    /// Panels of [`U32x16`], block after block; see [`layout`].
    data: AlignedVec,
}

impl PackedMatrix {
    /// Whether `isa` has a kernel for panels of this format.
    #[must_use]
    pub fn has_kernel(isa: Isa, dtype: DType) -> bool {
        !matches!(isa, Isa::Scalar(_)) && Layout::of(dtype).is_some()
    }

    /// A zero matrix `[n, k]` for [`pack`](Self::pack); `None` if the format has no panels or `k` is no whole number
    /// of blocks.
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

    /// Packs whole rows in GGML's blocks as rows `first ..`, `first` a multiple of 16.
    ///
    /// # Panics
    /// If `first` is no multiple of 16 or there are no such rows.
    pub fn pack(&mut self, cpu: &Cpu, first: usize, bytes: &[u8]) {
        let row_bytes = self.row_bytes();
        let rows = bytes.len() / row_bytes;
        assert!(first.is_multiple_of(PANEL_ROWS) && first + rows <= self.n, "pack: no such rows");
        let (layout, n_blocks, panel_len) = (self.layout, self.blocks_per_row(), self.panel_len());
        let panels = first / PANEL_ROWS..(first + rows).div_ceil(PANEL_ROWS);
        let vectors: &mut [U32x16] = bytemuck::cast_slice_mut(&mut self.data);
        let out = Parts::new(&mut vectors[panels.start * panel_len..panels.end * panel_len]);
        cpu.threads.run(panels.len(), |panel| {
            // SAFETY: each panel is of one task, and tasks run once.
            let vectors = unsafe { out.part(panel * panel_len..(panel + 1) * panel_len) };
            let rows = panel * PANEL_ROWS * row_bytes..bytes.len();
            layout.pack_panel(&bytes[rows], n_blocks, vectors);
        });
    }

    /// The format.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.layout.dtype
    }

    /// Name of the kernel that multiplies the matrix with `rows` rows of activations on `isa`, for logs and benches:
    /// format, algorithm (`gemv`, `gemm`, `amx`) and tier.
    #[must_use]
    pub fn kernel_name(&self, isa: Isa, rows: usize) -> String {
        let layout = ActivationLayout::for_packed(isa, rows);
        format!("{}-{}-{}", self.dtype(), layout.kernel(), isa.of_integers())
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

    /// Dequantizes row `row` into `out`, `[K]`.
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

    fn panel(&self, index: usize) -> &[U32x16] {
        let vectors: &[U32x16] = bytemuck::cast_slice(&self.data);
        &vectors[index * self.panel_len()..][..self.panel_len()]
    }

    /// Vectors of a panel.
    fn panel_len(&self) -> usize {
        self.layout.panel_len(self.blocks_per_row())
    }
}

/// A matmul with rows of packed weights: `out = epilogue(x * w[rows]^T)`.
#[derive(Debug)]
pub struct PackedProduct<'a> {
    /// `[M, rows.len()]`.
    pub out: MatMut<'a>,
    /// The matrix.
    pub w: &'a PackedMatrix,
    /// Rows of `w`.
    pub rows: Range<usize>,
    /// Applied to the sums.
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

    /// The panels of the rows.
    fn panels(&self) -> Range<usize> {
        let first = self.rows.start / PANEL_ROWS;
        let end = if self.rows.is_empty() { first } else { self.rows.end.div_ceil(PANEL_ROWS) };
        first..end
    }
}

/// Matmuls of one input as one loop of tasks: threads that find nothing left of one take from the next. `None` is
/// skipped. Allocates nothing.
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
        Some((PanelTask { w, x, panels, rows, out: out.shared(), epilogue }, per_task))
    });
    if x.rows() == 0 {
        return;
    }
    let shares = shares.iter().flatten();
    let n_tasks = |(all, per_task): &(PanelTask<'_>, usize)| all.panels.len().div_ceil(*per_task);
    cpu.threads.run(shares.clone().map(n_tasks).sum(), |mut task| {
        for share in shares.clone() {
            let n = n_tasks(share);
            if task < n {
                let (all, per_task) = share;
                let first = all.panels.start + task * per_task;
                let panels = first..all.panels.end.min(first + per_task);
                return PanelTask { panels, rows: all.rows.clone(), ..*all }.run(cpu.isa);
            }
            task -= n;
        }
    });
}

/// Panels of a task. `n_panels` and `panel_len`, in vectors, are those of all matrices together.
fn panels_per_task(cpu: &Cpu, x: &ActivationBuffer, n_panels: usize, panel_len: usize) -> usize {
    let n_threads = cpu.threads.n_threads();
    let limit = n_panels / (MIN_TASKS_PER_THREAD * n_threads);
    match x.layout() {
        ActivationLayout::RowMajor => {}
        #[cfg(target_arch = "x86_64")]
        ActivationLayout::AmxBf16 => return amx::panels_per_task(limit),
        #[cfg(target_arch = "x86_64")]
        ActivationLayout::Interleaved4 | ActivationLayout::Interleaved6 => {
            return gemm::panels_per_task(limit);
        }
    }
    let task_bytes = if x.rows() > 8 { TASK_BYTES_MANY_ROWS } else { TASK_BYTES };
    (task_bytes / (panel_len * size_of::<U32x16>()).max(1)).min(limit).max(1)
}

/// Some panels times all rows of `x`.
struct PanelTask<'a> {
    w: &'a PackedMatrix,
    x: &'a ActivationBuffer,
    panels: Range<usize>,
    /// Rows of `w` that are stored; the first and the last panel may have others.
    rows: Range<usize>,
    out: SharedMut<'a>,
    epilogue: Epilogue<'a>,
}

impl PanelTask<'_> {
    /// Runs the kernel of the tier and of the activations' layout.
    fn run(&self, isa: Isa) {
        match (isa.of_integers(), self.x.layout()) {
            #[cfg(target_arch = "x86_64")]
            (Isa::Amx(token), ActivationLayout::AmxBf16) => {
                token.with_tiles(|tiles| self.amx_gemm(token.vectors(), tiles));
            }
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2(token), ActivationLayout::Interleaved4) => {
                self.gemm(token, self.x.interleaved4());
            }
            #[cfg(target_arch = "x86_64")]
            (Isa::AvxVnni(token), ActivationLayout::Interleaved6) => {
                self.gemm(token, self.x.interleaved6());
            }
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512Vnni(token), ActivationLayout::Interleaved6) => {
                self.gemm(token, self.x.interleaved6());
            }
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2(token), ActivationLayout::RowMajor) => self.gemv(token),
            #[cfg(target_arch = "x86_64")]
            (Isa::AvxVnni(token), ActivationLayout::RowMajor) => self.gemv(token),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512Vnni(token), ActivationLayout::RowMajor) => self.gemv(token),
            #[cfg(target_arch = "x86_64")]
            (Isa::Amx(token), ActivationLayout::RowMajor) => self.gemv(token.vectors()),
            #[cfg(target_arch = "aarch64")]
            (Isa::Neon(token), ActivationLayout::RowMajor) => self.gemv(token),
            #[cfg(target_arch = "aarch64")]
            (Isa::NeonDot(token), ActivationLayout::RowMajor) => self.gemv(token),
            #[cfg(target_arch = "wasm32")]
            (Isa::WasmSimd128(token), ActivationLayout::RowMajor) => self.gemv(token),
            (isa, layout) => panic!("matmul: no kernel for panels and {layout:?} on {isa}"),
        }
    }
}

#[cfg(test)]
mod tests;
