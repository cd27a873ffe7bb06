//! Packing of weight rows into panels.

use crate::check_eq;
use crate::simd::{Isa, Kernel, Simd};

/// NR in vectors: width of a tile and of a panel.
pub(super) const PANEL_VECTORS: usize = 2;

/// f32 weights `[N, K]` with a copy in panels of GEMM, for products of many inputs with the same small weights, where
/// packing takes as long as the sums.
#[derive(Debug, Clone)]
pub struct DensePanels {
    rows: Vec<f32>,
    k: usize,
    /// `[N / NR, K, NR]`; zeros for columns past `N`.
    panels: Vec<f32>,
    /// NR of the instruction set.
    width: usize,
}

impl DensePanels {
    /// Packs `rows` = `[N, K]`, row-major, for `isa`.
    ///
    /// # Panics
    /// If `k` is 0 or does not divide the length.
    #[must_use]
    pub fn new(isa: Isa, rows: Vec<f32>, k: usize) -> Self {
        assert!(
            k > 0 && rows.len().is_multiple_of(k),
            "dense panels: expected a multiple of K = {k} values, got {}",
            rows.len()
        );
        let width = isa.dispatch(PanelWidth);
        let mut panels = vec![0.0; (rows.len() / k).next_multiple_of(width) * k];
        for (panel, rows) in panels.chunks_exact_mut(width * k).zip(rows.chunks(width * k)) {
            pack_panel(panel, rows, k, width);
        }
        Self { rows, k, panels, width }
    }

    /// The weights, row-major.
    pub(crate) fn rows(&self) -> &[f32] {
        &self.rows
    }

    /// Panels from column `n` on, a multiple of `width`.
    ///
    /// # Panics
    /// If the matrix was packed in panels of another width.
    pub(super) fn panels_from(&self, n: usize, width: usize) -> &[f32] {
        check_eq!(self.width, width, "dense panels: width of the panels");
        &self.panels[n * self.k..]
    }
}

struct PanelWidth;

impl Kernel for PanelWidth {
    type Output = usize;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> usize {
        PANEL_VECTORS * S::LANES
    }
}

/// Packs `rows[N,K]` into `panel[K,width]`: `panel[k * width + j] = rows[j * k_len + k]`, zero for `j >= N`.
///
/// # Panics
/// If `rows` holds more than `width` rows or `panel` is not `k_len × width`.
#[inline(always)]
pub(super) fn pack_panel(panel: &mut [f32], rows: &[f32], k_len: usize, width: usize) {
    assert!(
        panel.len() == k_len * width && rows.len() <= panel.len(),
        "gemm: expected at most {width} rows of {k_len} values in a panel"
    );
    if k_len == 0 {
        return;
    }
    let n_rows = rows.len() / k_len;
    if n_rows < width {
        panel.fill(0.0);
    }
    // Blocks of 16 rows of the panel keep the written lines in the L1 cache until they are full.
    for (block, out) in panel.chunks_mut(16 * width).enumerate() {
        let k = block * 16;
        let k_count = out.len() / width;
        for j in 0..n_rows {
            let row = &rows[j * k_len + k..][..k_count];
            for (i, &v) in row.iter().enumerate() {
                out[i * width + j] = v;
            }
        }
    }
}
