//! Sum of two matrices.

use super::row_tasks::for_row_ranges;
use super::{MatMut, MatRef};
use crate::Cpu;

/// `out[t,d] += x[t,d]`.
///
/// Shapes: both `[T, D]`.
///
/// # Panics
/// If the shapes differ.
#[track_caller]
pub fn add(cpu: &Cpu, out: MatMut<'_>, x: MatRef<'_>) {
    let (out, x) = (out.checked(), x.checked());
    assert_eq!((out.rows, out.cols), (x.rows, x.cols), "add: shapes");
    let out = out.shared();
    for_row_ranges(cpu, out.rows, out.cols, |rows| {
        for r in rows {
            // SAFETY: each row belongs to one task, and one span is alive at a time.
            let out = unsafe { out.span(r, 0, out.cols) };
            out.iter_mut().zip(x.row(r)).for_each(|(y, x)| *y += x);
        }
    });
}
