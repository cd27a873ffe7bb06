//! Transposes rows of weights into panels.

/// Writes `panel[k * width + j] = rows[j * k_len + k]` for every row `j`; columns without a row
/// become zero.
///
/// # Panics
/// If `rows` holds more than `width` rows or `panel` is not `k_len × width`.
#[inline(always)]
pub(super) fn transpose(panel: &mut [f32], rows: &[f32], k_len: usize, width: usize) {
    assert!(panel.len() == k_len * width && rows.len() <= panel.len(), "gemm: panel size");
    if k_len == 0 {
        return;
    }
    let n_rows = rows.len() / k_len;
    if n_rows < width {
        panel.fill(0.0);
    }
    // A square of 16 keeps the written lines in the first-level cache until they are full.
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
