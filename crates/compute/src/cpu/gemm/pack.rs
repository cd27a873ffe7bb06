//! Packing of weight rows into panels.

/// Packs `rows[N,K]` into `panel[K,width]`: `panel[k * width + j] = rows[j * k_len + k]`, zero for `j >= N`.
///
/// # Panics
/// If `rows` holds more than `width` rows or `panel` is not `k_len × width`.
#[inline(always)]
pub(super) fn pack_panel(panel: &mut [f32], rows: &[f32], k_len: usize, width: usize) {
    assert!(panel.len() == k_len * width && rows.len() <= panel.len(), "gemm: panel size");
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
