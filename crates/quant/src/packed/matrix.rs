//! Weights in panels, and their kernels.

use stonechat_compute::{AlignedVec, Cpu, DType, Isa, Parts};
use stonechat_compute::{check_at_most, check_below, check_multiple};

use super::kernels::{self, PanelKernels};
use super::layout::{self, Layout};
use super::panel::{PANEL_ROWS, Panels, U32x16};
use crate::activation::{ActivationLayout, MIN_GEMM_ROWS};

/// Weights `[N, K]` in panels.
#[derive(Debug)]
pub struct PackedMatrix {
    layout: &'static Layout,
    kernels: PanelKernels,
    /// Rows, the outputs of a matmul.
    pub(super) n: usize,
    /// Elements of a row.
    pub(super) k: usize,
    /// Panels of [`U32x16`], block after block; see [`layout`](super::layout).
    data: AlignedVec,
}

impl PackedMatrix {
    /// A zero matrix `[n, k]` for [`pack`](Self::pack), with the kernels of `isa`; `None` if the format has no panels or
    /// `k` is no whole number of blocks.
    ///
    /// # Errors
    /// [`OutOfMemory`](stonechat_compute::Error::OutOfMemory).
    pub fn zeroed(
        isa: Isa,
        dtype: DType,
        n: usize,
        k: usize,
    ) -> stonechat_compute::Result<Option<Self>> {
        let (Some(layout), Some(kernels)) = (Layout::of(dtype), kernels::choose(isa, dtype)) else {
            return Ok(None);
        };
        if !k.is_multiple_of(dtype.block_len()) {
            return Ok(None);
        }
        let panel_len = layout.panel_len(k / dtype.block_len());
        let len = n.div_ceil(PANEL_ROWS).saturating_mul(panel_len).saturating_mul(PANEL_ROWS);
        let bytes = len.saturating_mul(size_of::<f32>());
        let data = AlignedVec::try_zeroed_for_use(len);
        let data = data.ok_or(stonechat_compute::Error::OutOfMemory { bytes })?;
        Ok(Some(Self { layout, kernels, n, k, data }))
    }

    /// Packs whole rows in GGML's blocks as rows `first ..`, `first` a multiple of 16.
    ///
    /// # Panics
    /// If `first` is no multiple of 16 or there are no such rows.
    pub fn pack(&mut self, cpu: &Cpu, first: usize, bytes: &[u8]) {
        let row_bytes = self.row_bytes();
        let rows = bytes.len() / row_bytes;
        check_multiple!(first, PANEL_ROWS, "pack: first row");
        check_at_most!(first + rows, self.n, "pack: end of the rows");
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

    /// Name of the kernel that multiplies the matrix with `rows` rows of activations, for logs and benches: format,
    /// algorithm (`gemv`, `gemm`, `amx`) and tier.
    #[must_use]
    pub fn kernel_name(&self, rows: usize) -> String {
        let gemm = self.kernels.gemm_layout;
        let layout = if rows < MIN_GEMM_ROWS { ActivationLayout::RowMajor } else { gemm };
        format!("{}-{}-{}", self.dtype(), layout.kernel(), self.kernels.tier)
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
        check_below!(row, self.n, "dequantize: row");
        let panel = self.panels().panel(row / PANEL_ROWS);
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

    /// The kernels of the format on the tier that the matrix was made for.
    pub(super) fn kernels(&self) -> &PanelKernels {
        &self.kernels
    }

    pub(super) fn panels(&self) -> Panels<'_> {
        Panels {
            vectors: bytemuck::cast_slice(&self.data),
            len: self.n.div_ceil(PANEL_ROWS),
            panel_len: self.panel_len(),
            blocks_per_row: self.blocks_per_row(),
        }
    }

    /// Vectors of a panel.
    pub(super) fn panel_len(&self) -> usize {
        self.layout.panel_len(self.blocks_per_row())
    }
}
