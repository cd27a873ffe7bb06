//! The k largest values of a row and their indices.

use std::cmp::Ordering;

/// Value of a row and its index.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TopKEntry {
    /// Index in the row.
    pub index: u32,
    /// Value; finite or −∞.
    pub value: f32,
}

impl TopKEntry {
    fn new(index: u32, value: f32) -> Self {
        let value = if value.is_nan() { f32::NEG_INFINITY } else { value.min(f32::MAX) };
        Self { index, value }
    }

    /// Descending by value, then ascending by index, so that every platform agrees.
    fn descending(a: &Self, b: &Self) -> Ordering {
        b.value.partial_cmp(&a.value).unwrap_or(Ordering::Equal).then(a.index.cmp(&b.index))
    }
}

/// Replaces `out` by the `k` largest values of `row`, or all if there are fewer, in descending order; equal values in
/// order of their index. NaN counts as −∞, +∞ as `f32::MAX`. Reuses the memory of `out`.
///
/// ```text
/// for each chunk of 32 values:
///   skip it if `out` has k entries and no value exceeds `threshold`      (nearly all chunks)
///   append the values above `threshold`
///   when `out` has max(2k, 64) entries: select the k largest, threshold = the smallest of these
/// sort, truncate to k
/// ```
///
/// # Panics
/// If `k` is 0.
pub fn top_k(row: &[f32], k: usize, out: &mut Vec<TopKEntry>) {
    const CHUNK: usize = 32;
    assert!(k > 0, "top_k: expected k of at least 1, got 0");
    let limit = k.saturating_mul(2).max(64);
    let mut threshold = f32::NEG_INFINITY;
    out.clear();
    out.reserve(limit.min(row.len()));
    for (chunk, first) in row.chunks(CHUNK).zip((0..).step_by(CHUNK)) {
        let full = out.len() >= k;
        // A branchless test of the whole chunk, since nearly all chunks have nothing above the threshold.
        if full && !chunk.iter().fold(false, |any, &value| any | (value > threshold)) {
            continue;
        }
        for (&value, index) in chunk.iter().zip(first..) {
            // A value equal to the threshold loses to the k entries before it.
            if value > threshold || out.len() < k {
                out.push(TopKEntry::new(index, value));
                if out.len() == limit {
                    out.select_nth_unstable_by(k - 1, TopKEntry::descending);
                    out.truncate(k);
                    threshold = out[k - 1].value;
                }
            }
        }
    }
    out.sort_unstable_by(TopKEntry::descending);
    out.truncate(k);
}

#[cfg(test)]
mod tests {
    use super::{TopKEntry, top_k};

    /// Reference: sorts the whole row.
    fn sorted(row: &[f32], k: usize) -> Vec<(u32, f32)> {
        let mut all: Vec<_> = (0..).zip(row).map(|(i, &v)| TopKEntry::new(i, v)).collect();
        all.sort_by(TopKEntry::descending);
        all.iter().take(k).map(|r| (r.index, r.value)).collect()
    }

    #[test]
    fn equal_values_come_in_the_order_of_the_row() {
        let mut out = Vec::new();
        for n in [1, 31, 32, 33, 64, 500, 4097] {
            // Few distinct values, in no order.
            let row: Vec<f32> = (0..n).map(|i| (i * 7919 % 53) as f32 - 26.0).collect();
            for k in [1, 2, 7, 40, 64, 100, n] {
                top_k(&row, k, &mut out);
                let got: Vec<_> = out.iter().map(|r| (r.index, r.value)).collect();
                assert_eq!(got, sorted(&row, k), "{k} of {n}");
            }
        }
    }

    #[test]
    fn non_finite_values_have_a_rank() {
        let row = [f32::NAN, 1.0, f32::NEG_INFINITY, f32::INFINITY, f32::MAX, -0.0, 0.0];
        let mut out = Vec::new();
        top_k(&row, 7, &mut out);
        let order: Vec<u32> = out.iter().map(|r| r.index).collect();
        assert_eq!(order, [3, 4, 1, 5, 6, 0, 2]);
        assert_eq!([out[0].value, out[5].value], [f32::MAX, f32::NEG_INFINITY]);
        // More maxima than `out` holds before the first selection.
        top_k(&[f32::INFINITY; 200], 3, &mut out);
        assert_eq!(out.iter().map(|r| r.index).collect::<Vec<_>>(), [0, 1, 2]);
    }
}
