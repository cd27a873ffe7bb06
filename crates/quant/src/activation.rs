//! Activations quantized to q8 blocks, once per matmul and for every weight format alike.
//!
//! A q8 block is 32 elements with an f32 scale, for weights in blocks of 256 too: the quantization noise is at most that
//! of GGML's `Q8_K`, which has one scale per 256, and one buffer serves matrices of different formats.
//!
//! | layout | kernel | order in memory |
//! |---|---|---|
//! | row-major (`row_major`) | GEMV | rows one after the other, an array of quants, scales, sums each |
//! | interleaved (`tiled`, `interleaved`) | GEMM | `[M / MR][K / 32]` tiles of the q8 blocks of MR rows |
//! | bf16 tiles (`tiled`, `amx_bf16`) | AMX GEMM | `[M / 16][K / 32]` tiles of 16 x 32 bf16 |

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx_bf16;
pub(crate) mod interleaved;
mod qblock;
mod row_major;
pub(crate) mod tiled;

use std::ops::Range;

use stonechat_compute::cpu::{MatMut, MatRef};
#[cfg(target_arch = "x86_64")]
use stonechat_compute::simd::Tile;
use stonechat_compute::simd::{Int8, Int8Kernel};
use stonechat_compute::{Cpu, Isa, Parts};

use interleaved::InterleavedQBlocks;
pub(crate) use qblock::{QBLOCK_LEN, QBlock};
use qblock::{QBLOCKS_PER_256, grow};
pub(crate) use row_major::ActivationRow;
use row_major::RowMajorWriter;
use tiled::{TiledRows, TiledWriter};

/// Evaluates `$body` with `$w` the writer of the layout.
macro_rules! each_writer {
    ($writer:expr, $w:ident => $body:expr) => {
        match $writer {
            ActivationWriter::RowMajor($w) => $body,
            #[cfg(target_arch = "x86_64")]
            ActivationWriter::AmxBf16($w) => $body,
            ActivationWriter::Interleaved4($w) => $body,
            ActivationWriter::Interleaved6($w) => $body,
        }
    };
}

/// Minimum rows for GEMM with packed weights, which unpacks the weights first.
pub(crate) const MIN_GEMM_ROWS: usize = 17;

/// Quantized rows `x[M, K]`, reusable: after [`reserve`](Self::reserve) nothing is allocated as
/// long as matrices are no larger.
#[derive(Clone, Debug, Default)]
pub struct ActivationBuffer {
    m: usize,
    k: usize,
    layout: ActivationLayout,
    /// Q8 blocks of a row-major row, including the padding, which is zeros.
    qblocks_per_row: usize,
    quants: Vec<QBlock>,
    /// Per q8 block: the scale `d`, with `x = d * q`.
    scales: Vec<f32>,
    /// Per q8 block: `d * sum(q)`.
    sums32: Vec<f32>,
    /// Per 256 elements and 16 of them: `d * sum(q)`.
    sums16: Vec<[[f32; 8]; 2]>,
    /// Per q8 block and 16 elements: `sum(q)`.
    int_sums: Vec<[i32; 2]>,
    #[cfg(target_arch = "x86_64")]
    pub(crate) amx_bf16: TiledRows<Tile>,
    pub(crate) interleaved4: TiledRows<InterleavedQBlocks<4>>,
    pub(crate) interleaved6: TiledRows<InterleavedQBlocks<6>>,
}

/// Order of the rows in an [`ActivationBuffer`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ActivationLayout {
    /// Rows of q8 blocks one after the other, for GEMV.
    #[default]
    RowMajor,
    /// Tiles of 16 rows of bf16, for GEMM with AMX.
    #[cfg(target_arch = "x86_64")]
    AmxBf16,
    /// Q8 blocks of MR = 4 rows side by side, for GEMM with 16 vector registers.
    Interleaved4,
    /// Q8 blocks of MR = 6 rows side by side, for GEMM with VNNI or NEON.
    Interleaved6,
}

impl ActivationBuffer {
    /// An empty buffer.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Reserves memory for `m` row-major rows of `k` elements.
    pub fn reserve(&mut self, m: usize, k: usize) {
        let n_qblocks = m * padded_qblocks(k);
        self.quants.reserve(n_qblocks.saturating_sub(self.quants.len()));
        self.scales.reserve(n_qblocks.saturating_sub(self.scales.len()));
        self.sums32.reserve(n_qblocks.saturating_sub(self.sums32.len()));
        self.int_sums.reserve(n_qblocks.saturating_sub(self.int_sums.len()));
        let n_256 = n_qblocks / QBLOCKS_PER_256;
        self.sums16.reserve(n_256.saturating_sub(self.sums16.len()));
    }

    /// Bytes of `m` row-major rows of `k` elements.
    #[must_use]
    pub fn bytes_for(m: usize, k: usize) -> usize {
        m * padded_qblocks(k) * (QBLOCK_LEN + 4 * size_of::<f32>() + 2 * size_of::<i32>())
    }

    /// Rows held, `M`.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.m
    }

    /// Elements of a row, `K`.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.k
    }

    /// Quantizes `x` to row-major q8 blocks, rounding to nearest, ties to even. Non-finite values make the rows'
    /// outputs non-finite.
    ///
    /// # Panics
    /// If the rows of `x` are no whole number of 32 elements.
    #[track_caller]
    pub fn quantize(&mut self, cpu: &Cpu, x: MatRef<'_>) {
        self.row_major_writer(x.rows, x.cols).store_all(cpu, x);
    }

    /// Quantizes `x` for packed weights alone: from 17 rows on to the layout of the tier's GEMM, which is bf16 with
    /// AMX; else as [`quantize`](Self::quantize).
    ///
    /// # Panics
    /// If the rows of `x` are no whole number of 32 elements.
    #[track_caller]
    pub fn prepare(&mut self, cpu: &Cpu, x: MatRef<'_>) {
        let layout = ActivationLayout::for_packed(cpu.isa, x.rows);
        let writer = self.writer(x.rows, x.cols, layout);
        each_writer!(writer, w => w.store_all(cpu, x));
    }

    /// Like [`prepare`](Self::prepare), for `[m, k]` values that `fill` computes one range of rows at a time.
    ///
    /// # Panics
    /// If `k` is no multiple of 32.
    #[track_caller]
    pub fn prepare_rows(
        &mut self,
        cpu: &Cpu,
        [m, k]: [usize; 2],
        fill: impl Fn(Range<usize>, MatMut<'_>) + Sync,
    ) {
        let writer = self.writer(m, k, ActivationLayout::for_packed(cpu.isa, m));
        each_writer!(writer, w => w.store_rows(cpu, &fill));
    }

    /// Rounds `x` to bf16 tiles.
    #[cfg(all(test, target_arch = "x86_64"))]
    #[track_caller]
    pub(crate) fn convert_to_bf16_tiles(&mut self, cpu: &Cpu, x: MatRef<'_>) {
        self.resize(x.rows, x.cols, ActivationLayout::AmxBf16);
        self.amx_bf16.writer(x.rows, x.cols).store_all(cpu, x);
    }

    #[track_caller]
    fn resize(&mut self, m: usize, k: usize, layout: ActivationLayout) {
        assert!(k.is_multiple_of(QBLOCK_LEN), "activation rows: expected k % 32 == 0, got k = {k}");
        (self.m, self.k, self.layout) = (m, k, layout);
    }

    /// Resizes to `[m, k]` in `layout` and returns the writer of its values. Allocates if they are more than ever
    /// before.
    #[track_caller]
    pub(crate) fn writer(
        &mut self,
        m: usize,
        k: usize,
        layout: ActivationLayout,
    ) -> ActivationWriter<'_> {
        self.resize(m, k, layout);
        match layout {
            ActivationLayout::RowMajor => ActivationWriter::RowMajor(self.row_major_writer(m, k)),
            #[cfg(target_arch = "x86_64")]
            ActivationLayout::AmxBf16 => ActivationWriter::AmxBf16(self.amx_bf16.writer(m, k)),
            ActivationLayout::Interleaved4 => {
                ActivationWriter::Interleaved4(self.interleaved4.writer(m, k))
            }
            ActivationLayout::Interleaved6 => {
                ActivationWriter::Interleaved6(self.interleaved6.writer(m, k))
            }
        }
    }

    #[track_caller]
    fn row_major_writer(&mut self, m: usize, k: usize) -> RowMajorWriter<'_> {
        self.resize(m, k, ActivationLayout::RowMajor);
        let qblocks_per_row = padded_qblocks(k);
        self.qblocks_per_row = qblocks_per_row;
        grow(&mut self.quants, m * qblocks_per_row);
        grow(&mut self.scales, m * qblocks_per_row);
        grow(&mut self.sums32, m * qblocks_per_row);
        grow(&mut self.sums16, m * qblocks_per_row / QBLOCKS_PER_256);
        grow(&mut self.int_sums, m * qblocks_per_row);
        RowMajorWriter {
            n_rows: m,
            n_qblocks: k / QBLOCK_LEN,
            qblocks_per_row,
            quants: Parts::new(&mut self.quants),
            scales: Parts::new(&mut self.scales),
            sums32: Parts::new(&mut self.sums32),
            sums16: Parts::new(self.sums16.as_flattened_mut().as_flattened_mut()),
            int_sums: Parts::new(&mut self.int_sums),
        }
    }

    /// The order of the rows.
    pub(crate) fn layout(&self) -> ActivationLayout {
        self.layout
    }

    /// Dequantizes row `r` of a row-major buffer: the values that the integer dot products see.
    ///
    /// # Panics
    /// If there is no such row or `out` is shorter than it.
    pub fn dequantize_row(&self, r: usize, out: &mut [f32]) {
        let row = self.row(r);
        for (i, v) in out[..self.k].iter_mut().enumerate() {
            let q = row.quants[i / QBLOCK_LEN].0[i % QBLOCK_LEN];
            *v = row.scales[i / QBLOCK_LEN] * f32::from(q);
        }
    }

    /// Row `r` of a row-major buffer.
    #[inline(always)]
    pub(crate) fn row(&self, r: usize) -> ActivationRow<'_> {
        let qblocks = r * self.qblocks_per_row..(r + 1) * self.qblocks_per_row;
        let of_256 = qblocks.start / QBLOCKS_PER_256..qblocks.end / QBLOCKS_PER_256;
        ActivationRow {
            quants: &self.quants[qblocks.clone()],
            scales: &self.scales[qblocks.clone()],
            sums32: &self.sums32[qblocks.clone()],
            sums16: &self.sums16[of_256],
            int_sums: &self.int_sums[qblocks],
        }
    }
}

impl ActivationLayout {
    /// The layout in which packed weights are multiplied with `rows` rows on `isa`.
    pub(crate) fn for_packed(isa: Isa, rows: usize) -> Self {
        struct GemmRows;
        impl Int8Kernel for GemmRows {
            type Output = usize;

            fn run<S: Int8>(self, _: S) -> usize {
                S::GEMM_ROWS
            }
        }
        if rows < MIN_GEMM_ROWS {
            return Self::RowMajor;
        }
        #[cfg(target_arch = "x86_64")]
        if isa.tiles().is_some() {
            return Self::AmxBf16;
        }
        Self::interleaved(isa.dispatch_int8(GemmRows))
    }

    /// The layout of GEMM with tiles of `mr` rows ([`Int8::GEMM_ROWS`]); row-major where GEMV takes any number of rows.
    pub(crate) fn interleaved(mr: usize) -> Self {
        match mr {
            4 => Self::Interleaved4,
            6 => Self::Interleaved6,
            _ => Self::RowMajor,
        }
    }

    /// The kernel that multiplies packed weights with rows in this layout.
    pub(crate) fn kernel(self) -> &'static str {
        match self {
            Self::RowMajor => "gemv",
            #[cfg(target_arch = "x86_64")]
            Self::AmxBf16 => "amx",
            Self::Interleaved4 | Self::Interleaved6 => "gemm",
        }
    }
}

fn padded_qblocks(k: usize) -> usize {
    k.div_ceil(QBLOCK_LEN).next_multiple_of(QBLOCKS_PER_256)
}

/// Writes columns of an [`ActivationBuffer`] from several threads.
#[derive(Clone, Copy)]
pub(crate) enum ActivationWriter<'a> {
    RowMajor(RowMajorWriter<'a>),
    #[cfg(target_arch = "x86_64")]
    AmxBf16(TiledWriter<'a, Tile>),
    Interleaved4(TiledWriter<'a, InterleavedQBlocks<4>>),
    Interleaved6(TiledWriter<'a, InterleavedQBlocks<6>>),
}

impl ActivationWriter<'_> {
    /// Stores `x`, columns `32 * first ..` of all rows.
    ///
    /// # Safety
    /// - No other thread reads or writes columns `32 * first .. 32 * first + x.cols` during the call.
    /// - No other thread stores the last columns of the rows at the same time, if `x` has them: they bring the padding.
    ///
    /// # Panics
    /// If there are no such columns.
    pub(crate) unsafe fn store(self, isa: Isa, first: usize, x: MatRef<'_>) {
        // SAFETY: 32 columns are one q8 block of each row or one tile of each row block, which no other thread has.
        each_writer!(self, w => unsafe { w.store(isa, first, x) });
    }
}
