//! Cases of [`Op::TopK`] and [`Op::LogitFilter`], which are exact, and of [`Op::LogSumExp`].

use stonechat_nn::op::{Count, Op, Rows};
use stonechat_nn::{LogitFilter, MAX_TOP_K};

use super::recording::{Recording, Suite};
use super::{EXACT, Tolerance};

/// Distribution of a row's values.
#[derive(Debug, Clone, Copy)]
enum Values {
    /// Normally distributed values, hardly any duplicates.
    Spread,
    /// Five distinct values, among them both zeros.
    Ties,
    /// Mostly −∞, some NaN and infinite.
    Impossible,
}

/// Runs every shape.
pub(super) fn check(suite: &Suite<'_>) {
    for (i, cols) in [1, 3, 64, 129, 1000, 1024, 1025, 5003, 40_007].into_iter().enumerate() {
        let rows = [1, 3, 2][i % 3];
        for values in [Values::Spread, Values::Ties, Values::Impossible] {
            for k in [1, 7, 40, MAX_TOP_K].map(|k| k.min(cols)) {
                let name = format!("top {k} of {rows}x{cols}, {values:?}");
                suite.check(&name, EXACT, (rows, cols as u64), |r| {
                    record(r, (rows, cols), values, k);
                });
            }
        }
        let name = format!("log-sum-exp of {rows}x{cols}");
        let tolerance = Tolerance { absolute: 2e-5, relative: 1e-6 };
        suite.check(&name, tolerance, (rows, cols as u64), |r| record_log_sum_exp(r, rows, cols));
    }
    for (rows, cols) in [(1, 2), (6, 40), (7, 1025), (12, 40_007)] {
        for seed in 0..4 {
            let name = format!("logit filter of {rows}x{cols}");
            suite.check(&name, EXACT, (rows, seed), |r| record_logit_filter(r, rows, cols));
        }
    }
}

/// Rows of normal values, of some −∞, and of −∞ alone.
fn record_log_sum_exp(r: &mut Recording<'_>, rows: usize, cols: usize) {
    let stride = cols + 2;
    let mut x = vec![f32::MAX; rows * stride];
    for (t, row) in x.chunks_exact_mut(stride).enumerate() {
        let row = &mut row[1..=cols];
        row.copy_from_slice(&r.random.normals(cols, 10.0));
        let n_impossible = [0, cols / 2, cols][t % 3];
        row[..n_impossible].fill(f32::NEG_INFINITY);
    }
    let x = r.import(x, Rows::of(Count::Tokens), stride).columns(1, cols);
    let log_sum_exp = r.ops.op(Op::LogSumExp, &[x]);
    r.output_values(log_sum_exp, rows);
}

/// Rows whose first or second range is more probable, each with ranges and lists of its own: the filtered rows
/// and their largest values.
fn record_logit_filter(r: &mut Recording<'_>, rows: usize, cols: usize) {
    let n_first = (2 * cols / 3).max(1);
    let mut below = {
        let random = &mut r.random;
        move |n: usize| random.next_u32() as usize % n
    };
    let n_suppressed = 9;
    let suppressed: Vec<u32> = (0..n_suppressed).map(|_| below(cols) as u32).collect();
    let mut range = |from: usize, to: usize| {
        let [a, b] = [0, 1].map(|_| from + below(to - from + 1));
        a.min(b) as u32..a.max(b) as u32
    };
    let filter = |t: usize| {
        let (first, second) = (range(0, n_first), range(n_first, cols));
        // Parts of the first or second range, of both, or all.
        let first = if t.is_multiple_of(3) { first } else { 0..n_first as u32 };
        let second = if t.is_multiple_of(4) { second } else { n_first as u32..cols as u32 };
        let lists = [range(0, n_suppressed), range(0, n_suppressed)];
        match t {
            1 => LogitFilter::none(cols as u32),
            2 => LogitFilter { kept: [0..0, second], suppressed: lists },
            3 => LogitFilter { kept: [first, cols as u32..cols as u32], suppressed: lists },
            _ => LogitFilter { kept: [first, second], suppressed: lists },
        }
    };
    let filters = (0..rows).map(filter).collect();
    let mut logits = r.random.normals(rows * cols, 1.0);
    for (t, row) in logits.chunks_exact_mut(cols).enumerate() {
        // The sum of the second range decides, and is far from the largest of the first.
        let distance = (cols as f32).ln() + 20.0;
        let sign = if t % 2 == 0 { 1.0 } else { -1.0 };
        row[n_first..].iter_mut().for_each(|logit| *logit += sign * distance);
    }
    let tables = r.tables();
    (tables.logit_filters, tables.suppressed, tables.k) = (filters, suppressed, 2.min(cols));
    let x = r.import(logits, Rows::of(Count::Tokens), cols);
    let filtered = r.ops.logit_filter(x);
    r.output(filtered);
    let top_k = r.ops.top_k(filtered);
    r.output_values(top_k, 2 * 2.min(cols) * rows);
}

fn record(r: &mut Recording<'_>, (rows, cols): (usize, usize), values: Values, k: usize) {
    r.tables().k = k;
    let stride = cols + 2;
    // The gaps hold the largest value: a kernel that reads them fails.
    let mut x = vec![f32::MAX; rows * stride];
    for row in x.chunks_exact_mut(stride) {
        let row = &mut row[1..=cols];
        let random = &mut r.random;
        match values {
            Values::Spread => row.copy_from_slice(&random.normals(cols, 10.0)),
            Values::Ties => {
                let few = [-1.5, -0.0, 0.0, 2.0, 2.5];
                row.fill_with(|| few[random.next_u32() as usize % few.len()]);
            }
            Values::Impossible => {
                let few = [f32::INFINITY, f32::MAX, f32::NAN, -f32::NAN, -f32::MAX, 1e-40];
                let some = |n: u32| few.get(n as usize % 50).copied();
                row.fill_with(|| some(random.next_u32()).unwrap_or(f32::NEG_INFINITY));
            }
        }
    }
    let x = r.import(x, Rows::of(Count::Tokens), stride).columns(1, cols);
    let top_k = r.ops.top_k(x);
    r.output_values(top_k, 2 * k * rows);
}
