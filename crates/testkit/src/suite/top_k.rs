//! Cases of [`Backend::top_k`], which is exact.

use stonechat_nn::{Backend, MAX_TOP_K, Rows, View};

use super::{download, upload};
use crate::{Lcg, Reference};

/// Distribution of a row's values.
#[derive(Debug, Clone, Copy)]
enum Values {
    /// Normal, hardly any duplicates.
    Spread,
    /// Five distinct values, among them both zeros.
    Ties,
    /// Mostly −∞, some NaN and infinite.
    Impossible,
}

/// Runs every shape on each of `backends`.
pub(super) fn check<B: Backend>(backends: &[B]) {
    for (i, cols) in [1, 3, 64, 129, 1000, 1024, 1025, 5003, 40_007].into_iter().enumerate() {
        let rows = [1, 3, 2][i % 3];
        for values in [Values::Spread, Values::Ties, Values::Impossible] {
            for k in [1, 7, 40, MAX_TOP_K].map(|k| k.min(cols)) {
                let expected = run(&Reference, (rows, cols), values, k);
                for backend in backends {
                    let got = run(backend, (rows, cols), values, k);
                    let name = backend.describe();
                    assert!(got == expected, "{name}: top {k} of {rows}x{cols}, {values:?}");
                }
            }
        }
    }
}

fn run<B: Backend>(
    backend: &B,
    (rows, cols): (usize, usize),
    values: Values,
    k: usize,
) -> Vec<f32> {
    let mut random = Lcg::new(cols as u64);
    let rows = Rows { offset: 1, rows, cols, stride: cols + 2 };
    // The gaps hold the largest value: a kernel that reads them fails.
    let mut x = vec![f32::MAX; rows.end() + 1];
    for r in 0..rows.rows {
        let row = &mut x[rows.offset + r * rows.stride..][..cols];
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
    let x = upload(backend, &x);
    let mut out = upload(backend, &vec![f32::NAN; 2 * k * rows.rows]);
    backend.top_k(&mut out, View::new(&x, rows), k);
    download(backend, &out, 2 * k * rows.rows)
}
