//! Elementwise ops in place: sum of two matrices, soft cap.

use super::math::tanh;
use super::row_tasks::for_row_ranges;
use super::{MatMut, MatRef};
use crate::Cpu;
use crate::check_eq;
use crate::simd::{Kernel, Simd};

/// `out[t,d] += x[t,d]`.
///
/// Shapes: both `[T, D]`.
///
/// # Panics
/// If the shapes differ.
#[track_caller]
pub fn add(cpu: &Cpu, out: MatMut<'_>, x: MatRef<'_>) {
    let x = x.checked();
    check_eq!((x.rows, x.cols), (out.rows, out.cols), "add: shape of the second operand");
    for_each_row(cpu, out, |out, r| out.iter_mut().zip(x.row(r)).for_each(|(y, x)| *y += x));
}

/// `x[t,d] = cap * tanh(x[t,d] / cap)`.
///
/// Shape: `[T, D]`. Numerics: absolute error of `2e-7 * cap`.
#[track_caller]
pub fn soft_cap(cpu: &Cpu, x: MatMut<'_>, cap: f32) {
    for_each_row(cpu, x, |row, _| cpu.isa.dispatch(SoftCap { cap, row }));
}

/// Calls `f` for each row and its index.
fn for_each_row(cpu: &Cpu, out: MatMut<'_>, f: impl Fn(&mut [f32], usize) + Sync) {
    let out = out.checked();
    let out = out.shared();
    for_row_ranges(cpu, out.rows, out.cols, |rows| {
        for r in rows {
            // SAFETY: each row belongs to one task, and one span is alive at a time.
            f(unsafe { out.span(r, 0, out.cols) }, r);
        }
    });
}

struct SoftCap<'a> {
    cap: f32,
    row: &'a mut [f32],
}

impl Kernel for SoftCap<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let cap = s.splat(self.cap);
        let (row, tail) = s.split_mut(self.row);
        for x in row {
            *x = s.mul(cap, tanh(s, s.div(*x, cap)));
        }
        let y = s.mul(cap, tanh(s, s.div(s.load_partial(tail), cap)));
        s.store_partial(tail, y);
    }
}
