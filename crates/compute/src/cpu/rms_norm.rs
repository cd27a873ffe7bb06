//! RMS norm.

use std::ops::Range;

use super::matrix::{MatMut, MatRef, SharedMut};
use super::row_tasks::for_row_ranges;
use crate::simd::{Kernel, Simd};
use crate::{Cpu, Isa};

/// Parameters of [`rms_norm`].
#[derive(Debug, Clone, Copy)]
pub struct RmsNorm<'a> {
    /// `[D]`.
    pub weight: &'a [f32],
    /// Added to the mean of the squares.
    pub eps: f32,
    /// Whether to add to the output instead of overwriting it.
    pub accumulate: bool,
}

/// `out[t,d] = x[t,d] / sqrt(mean_d(x[t]²) + eps) * weight[d]`, or `+=` with `accumulate`.
///
/// Shapes: `x`, `out` = `[T, D]`. Numerics: one f32 sum per lane. Source: Zhang & Sennrich 2019, eq. 4.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn rms_norm(cpu: &Cpu, out: MatMut<'_>, x: MatRef<'_>, norm: RmsNorm<'_>) {
    let (out, x) = norm.check(out, x);
    for_row_ranges(cpu, x.rows, x.cols, |rows| {
        cpu.isa.dispatch(RmsNormRows { out, x, norm, rows });
    });
}

impl RmsNorm<'_> {
    #[track_caller]
    fn check<'b>(&self, out: MatMut<'b>, x: MatRef<'b>) -> (SharedMut<'b>, MatRef<'b>) {
        let (out, x) = (out.checked(), x.checked());
        assert_eq!((out.rows, out.cols), (x.rows, x.cols), "rms_norm: shapes differ");
        assert_eq!(self.weight.len(), x.cols, "rms_norm: weight length is not the row width");
        (out.shared(), x)
    }

    /// [`rms_norm`] on this thread.
    ///
    /// # Panics
    /// If the shapes do not fit.
    #[track_caller]
    pub fn run(self, isa: Isa, out: MatMut<'_>, x: MatRef<'_>) {
        let (out, x) = self.check(out, x);
        isa.dispatch(RmsNormRows { out, x, norm: self, rows: 0..x.rows });
    }
}

struct RmsNormRows<'a> {
    out: SharedMut<'a>,
    x: MatRef<'a>,
    norm: RmsNorm<'a>,
    rows: Range<usize>,
}

impl Kernel for RmsNormRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let RmsNorm { weight, eps, accumulate } = self.norm;
        for r in self.rows {
            let x = self.x.row(r);
            // SAFETY: each row belongs to one task, and one span is alive at a time.
            let out = unsafe { self.out.span(r, 0, self.x.cols) };
            let scale = inverse_rms(s, x, eps);
            let scale_v = s.splat(scale);
            let (head, tail) = s.split(x);
            let (weight, weight_tail) = s.split(weight);
            let (out, out_tail) = s.split_mut(out);
            for i in 0..head.len() {
                let y = s.mul(s.mul(head[i], scale_v), weight[i]);
                out[i] = if accumulate { s.add(out[i], y) } else { y };
            }
            for i in 0..tail.len() {
                let y = tail[i] * scale * weight_tail[i];
                out_tail[i] = if accumulate { out_tail[i] + y } else { y };
            }
        }
    }
}

/// `1 / sqrt(mean(x²) + eps)`.
#[inline(always)]
pub(crate) fn inverse_rms<S: Simd>(s: S, x: &[f32], eps: f32) -> f32 {
    let (head, tail) = s.split(x);
    let tail = s.load_partial(tail);
    let mut squares = s.mul(tail, tail);
    for &v in head {
        squares = s.mul_add(v, v, squares);
    }
    1.0 / (s.reduce_sum(squares) / x.len() as f32 + eps).sqrt()
}

#[cfg(test)]
mod tests {
    use super::{RmsNorm, rms_norm};
    use crate::cpu::test_data::{assert_close, random};
    use crate::cpu::{MatMut, MatRef};
    use crate::{Cpu, Isa, ThreadTeam};

    #[test]
    fn matches_f64_at_odd_widths() {
        for isa in Isa::available() {
            let cpu = Cpu { isa, threads: ThreadTeam::new(2).unwrap() };
            for (t, d) in [(0, 4), (1, 1), (3, 15), (2, 16), (5, 49), (300, 384), (3, 513)] {
                let stride = d + 3;
                let (x, weight) = (random(t * stride, 3), random(d, 4));
                let x = MatRef::new(&x, t, d, stride);
                for accumulate in [false, true] {
                    let old = random(t * d, 5);
                    let mut out = old.clone();
                    let norm = RmsNorm { weight: &weight, eps: 1e-5, accumulate };
                    rms_norm(&cpu, MatMut::packed(&mut out, t, d), x, norm);
                    let mut expected = Vec::new();
                    for r in 0..t {
                        let row: Vec<f64> = x.row(r).iter().map(|&v| f64::from(v)).collect();
                        let mean = row.iter().map(|v| v * v).sum::<f64>() / d as f64;
                        for i in 0..d {
                            let y = row[i] / (mean + 1e-5).sqrt() * f64::from(weight[i]);
                            let old = f64::from(old[r * d + i]);
                            expected.push(if accumulate { old + y } else { y });
                        }
                    }
                    assert_close(&out, &expected, 2e-6, isa.name());
                }
            }
        }
    }
}
