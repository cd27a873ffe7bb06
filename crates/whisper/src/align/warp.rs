//! Attention weights of the alignment heads to a path of tokens through time.
//!
//! The matrix product and softmax are here, not in `nn`: no backend op returns attention weights.

/// Positions of the median filter.
const MEDIAN: usize = 7;

/// `softmax(queries · keysᵀ / sqrt(c))`, `[T, n]`, of packed `queries` `[T, c]` and `keys` `[n, c]`.
pub(super) fn attention_weights(queries: &[f32], keys: &[f32], c: usize) -> Vec<f32> {
    let n = keys.len() / c;
    let scale = 1.0 / (c as f32).sqrt();
    // Keys are transposed to `[c, n]`: the inner loop then has independent sums.
    let mut channels = vec![0.0; keys.len()];
    for (position, key) in keys.chunks_exact(c).enumerate() {
        for (channel, &value) in key.iter().enumerate() {
            channels[channel * n + position] = value;
        }
    }
    let mut weights = vec![0.0; queries.len() / c * n];
    for (query, row) in queries.chunks_exact(c).zip(weights.chunks_exact_mut(n)) {
        for (q, keys) in query.chunks(4).zip(channels.chunks(4 * n)) {
            if let &[a, b, c, d] = q {
                let (ka, rest) = keys.split_at(n);
                let (kb, rest) = rest.split_at(n);
                let (kc, kd) = rest.split_at(n);
                for ((((w, ka), kb), kc), kd) in row.iter_mut().zip(ka).zip(kb).zip(kc).zip(kd) {
                    *w += a * ka + b * kb + c * kc + d * kd;
                }
            } else {
                for (q, keys) in q.iter().zip(keys.chunks_exact(n)) {
                    row.iter_mut().zip(keys).for_each(|(w, key)| *w += q * key);
                }
            }
        }
        softmax(row, scale);
    }
    weights
}

fn softmax(row: &mut [f32], scale: f32) {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for value in row.iter_mut() {
        *value = ((*value - max) * scale).exp();
        sum += *value;
    }
    row.iter_mut().for_each(|value| *value /= sum);
}

/// Standardizes each of the `n` columns to mean 0 and deviation 1; constant columns become 0.
pub(super) fn normalize_columns(weights: &mut [f32], n: usize) {
    let n_rows = (weights.len() / n) as f32;
    let mut mean = vec![0.0; n];
    for row in weights.chunks_exact(n) {
        mean.iter_mut().zip(row).for_each(|(mean, w)| *mean += w / n_rows);
    }
    let mut factor = vec![0.0; n];
    for row in weights.chunks_exact(n) {
        for ((sum, w), mean) in factor.iter_mut().zip(row).zip(&mean) {
            *sum += (w - mean) * (w - mean) / n_rows;
        }
    }
    for factor in &mut factor {
        *factor = if *factor > 0.0 { 1.0 / factor.sqrt() } else { 0.0 };
    }
    for row in weights.chunks_exact_mut(n) {
        for ((w, mean), factor) in row.iter_mut().zip(&mean).zip(&factor) {
            *w = (*w - mean) * factor;
        }
    }
}

/// Adds the median filter of `row` to `sums`; the row is padded by reflection, and not filtered if it
/// is too short for that.
pub(super) fn add_medians(row: &[f32], sums: &mut [f32]) {
    const PAD: usize = MEDIAN / 2;
    if row.len() <= PAD {
        row.iter().zip(sums).for_each(|(value, sum)| *sum += value);
        return;
    }
    let mut padded = Vec::with_capacity(row.len() + 2 * PAD);
    padded.extend(row[1..=PAD].iter().rev());
    padded.extend(row);
    padded.extend(row[row.len() - 1 - PAD..row.len() - 1].iter().rev());
    for (window, sum) in padded.windows(MEDIAN).zip(sums) {
        if let Ok(window) = window.try_into() {
            *sum += median(window);
        }
    }
}

/// Median of seven values by 13 exchanges (Devillard, "Fast median search", 1998).
fn median(mut v: [f32; MEDIAN]) -> f32 {
    for (i, j) in [
        (0, 5),
        (0, 3),
        (1, 6),
        (2, 4),
        (0, 1),
        (3, 5),
        (2, 6),
        (2, 3),
        (3, 6),
        (4, 5),
        (1, 4),
        (1, 3),
        (3, 4),
    ] {
        let (a, b) = (v[i], v[j]);
        (v[i], v[j]) = if b < a { (b, a) } else { (a, b) };
    }
    v[MEDIAN / 2]
}

/// Dynamic time warping: first column of each row on the path of most weight through `weights`,
/// `[n_rows, n]`, from the first entry to the last.
///
/// ```text
/// cost[i][j] = min(cost[i-1][j-1], cost[i-1][j], cost[i][j-1]) - weights[i][j]
/// ```
pub(super) fn first_columns(weights: &[f32], n_rows: usize, n: usize) -> Vec<usize> {
    const DIAGONAL: u8 = 0;
    const DOWN: u8 = 1;
    const RIGHT: u8 = 2;
    let mut firsts = vec![0; n_rows];
    if n == 0 {
        return firsts;
    }
    let mut steps = vec![RIGHT; n_rows * n];
    // Costs of the row above and of this one; column 0 is a border outside `weights`.
    let mut above = vec![f32::INFINITY; n + 1];
    let mut costs = above.clone();
    above[0] = 0.0;
    for (row, steps) in weights.chunks_exact(n).zip(steps.chunks_exact_mut(n)) {
        costs[0] = f32::INFINITY;
        for j in 0..n {
            let (diagonal, down, right) = (above[j], above[j + 1], costs[j]);
            let (cost, step) = if diagonal < down && diagonal < right {
                (diagonal, DIAGONAL)
            } else if down < diagonal && down < right {
                (down, DOWN)
            } else {
                (right, RIGHT)
            };
            costs[j + 1] = cost - row[j];
            steps[j] = step;
        }
        std::mem::swap(&mut above, &mut costs);
    }
    let mut column = n - 1;
    for (row, first) in firsts.iter_mut().enumerate().rev() {
        let steps = &steps[row * n..(row + 1) * n];
        while column > 0 && steps[column] == RIGHT {
            column -= 1;
        }
        *first = column;
        if steps[column] == DIAGONAL {
            column = column.saturating_sub(1);
        }
    }
    firsts
}

#[cfg(test)]
mod tests {
    use super::{add_medians, attention_weights, first_columns, median, normalize_columns};

    #[test]
    fn medians_of_all_orders() {
        let mut values = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0f32];
        let mut counters = [0; 7];
        // Heap's algorithm visits all 5040 permutations.
        let mut i = 0;
        while i < values.len() {
            assert_eq!(median(values), 3.0, "{values:?}");
            if counters[i] < i {
                values.swap(if i.is_multiple_of(2) { 0 } else { counters[i] }, i);
                counters[i] += 1;
                i = 0;
            } else {
                counters[i] = 0;
                i += 1;
            }
        }
    }

    #[test]
    fn rows_are_reflected_at_their_ends() {
        #[track_caller]
        fn check(row: &[f32], expected: &[f32]) {
            let mut sums = vec![10.0; row.len()];
            add_medians(row, &mut sums);
            let expected: Vec<f32> = expected.iter().map(|value| value + 10.0).collect();
            assert_eq!(sums, expected);
        }
        check(&[5.0, 1.0, 2.0], &[5.0, 1.0, 2.0]);
        // Around the first: 4 2 1 | 9 1 2 4; around the last: 9 1 2 | 4 | 2 1 9.
        check(&[9.0, 1.0, 2.0, 4.0], &[2.0, 2.0, 2.0, 2.0]);
        check(&[0.0, 9.0, 0.0, 0.0, 0.0, 0.0, 0.0, 7.0], &[0.0; 8]);
    }

    #[test]
    fn weights_are_softmax_of_scaled_products() {
        // Six channels: four at once and two one by one.
        let c = 6;
        let queries: Vec<f32> = (0..2 * c).map(|i| (i as f32 * 0.7).sin()).collect();
        let keys: Vec<f32> = (0..5 * c).map(|i| (i as f32 * 1.3).cos()).collect();
        let weights = attention_weights(&queries, &keys, c);
        for (query, row) in queries.chunks(c).zip(weights.chunks(5)) {
            let scores: Vec<f64> = keys
                .chunks(c)
                .map(|key| query.iter().zip(key).map(|(q, k)| f64::from(q * k)).sum::<f64>())
                .map(|dot| (dot / (c as f64).sqrt()).exp())
                .collect();
            let total: f64 = scores.iter().sum();
            for (weight, score) in row.iter().zip(scores) {
                assert!((f64::from(*weight) - score / total).abs() < 1e-6);
            }
        }
    }

    #[test]
    fn columns_get_mean_0_and_deviation_1() {
        let mut weights = vec![1.0, 5.0, 3.0, 5.0, 8.0, 5.0];
        normalize_columns(&mut weights, 2);
        let column: Vec<f32> = weights.iter().copied().step_by(2).collect();
        let mean: f32 = column.iter().sum::<f32>() / 3.0;
        let variance: f32 = column.iter().map(|w| w * w).sum::<f32>() / 3.0;
        assert!(mean.abs() < 1e-6 && (variance - 1.0).abs() < 1e-6);
        assert_eq!(weights.iter().copied().skip(1).step_by(2).collect::<Vec<_>>(), [0.0; 3]);
    }

    /// Most weight of any path, by exhaustive search.
    fn best(weights: &[f32], n_rows: usize, n: usize, i: usize, j: usize) -> f32 {
        let mut rest = f32::NEG_INFINITY;
        if (i, j) == (n_rows - 1, n - 1) {
            rest = 0.0;
        }
        for (i, j) in [(i + 1, j), (i, j + 1), (i + 1, j + 1)] {
            if i < n_rows && j < n {
                rest = rest.max(best(weights, n_rows, n, i, j));
            }
        }
        weights[i * n + j] + rest
    }

    #[test]
    fn paths_collect_the_most_weight() {
        let mut state = 1u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) as f32 / 65536.0 - 0.5
        };
        for (n_rows, n) in [(1, 1), (1, 5), (5, 1), (2, 7), (4, 4), (5, 6), (6, 3)] {
            let weights: Vec<f32> = (0..n_rows * n).map(|_| random()).collect();
            let firsts = first_columns(&weights, n_rows, n);
            assert_eq!(firsts[0], 0);
            // A row is left where the next begins, or just before that.
            let row_sum = |row: usize, to: usize| -> f32 {
                weights[row * n + firsts[row]..=row * n + to].iter().sum()
            };
            let mut total = row_sum(n_rows - 1, n - 1);
            for row in 0..n_rows - 1 {
                let next = firsts[row + 1];
                assert!(next >= firsts[row]);
                let down = row_sum(row, next);
                let diagonal =
                    if next > firsts[row] { row_sum(row, next - 1) } else { f32::NEG_INFINITY };
                total += down.max(diagonal);
            }
            let expected = best(&weights, n_rows, n, 0, 0);
            assert!((total - expected).abs() < 1e-4, "{n_rows}x{n}: {total} {expected}");
        }
        assert_eq!(first_columns(&[], 2, 0), [0, 0]);
    }
}
