//! Layer norm and RMS norm of rows.

use std::ops::Range;

use super::matrix::{MatMut, MatRef, SharedMut};
use super::row_tasks::for_row_ranges;
use crate::check_eq;
use crate::op::NormArgs;
use crate::simd::{Kernel, Simd};
use crate::{Cpu, Isa};

/// `out[t,d] = (x[t,d] - mean_d(x[t])) / sqrt(var_d(x[t]) + eps) * weight[d] + bias[d]`.
///
/// Shapes: `x`, `out` = `[T, D]`. Numerics: two passes, one f32 sum per lane, variance of the centred values. Source: Ba et
/// al. 2016, eq. 4, with PyTorch's `eps` placement.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn layer_norm(cpu: &Cpu, out: MatMut<'_>, x: MatRef<'_>, norm: NormArgs<&[f32]>) {
    LayerNorm(norm).run_parallel(cpu, out, x);
}

/// [`layer_norm`] on this thread.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn layer_norm_rows(isa: Isa, out: MatMut<'_>, x: MatRef<'_>, norm: NormArgs<&[f32]>) {
    LayerNorm(norm).run(isa, out, x);
}

/// `out[t,d] = x[t,d] / sqrt(mean_d(x[t]²) + eps) * weight[d]`, or `+=` with `accumulate`.
///
/// Shapes: `x`, `out` = `[T, D]`. Numerics: one f32 sum per lane. Source: Zhang & Sennrich 2019, eq. 4.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn rms_norm(
    cpu: &Cpu,
    out: MatMut<'_>,
    x: MatRef<'_>,
    norm: NormArgs<&[f32]>,
    accumulate: bool,
) {
    RmsNorm { norm, accumulate }.run_parallel(cpu, out, x);
}

/// [`rms_norm`] on this thread, without `accumulate`.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn rms_norm_rows(isa: Isa, out: MatMut<'_>, x: MatRef<'_>, norm: NormArgs<&[f32]>) {
    RmsNorm { norm, accumulate: false }.run(isa, out, x);
}

/// Norm of one row.
trait RowNorm: Copy + Sync {
    const NAME: &'static str;

    fn weights(&self) -> (&[f32], Option<&[f32]>);

    fn normalize<S: Simd>(self, s: S, out: &mut [f32], x: &[f32]);

    #[track_caller]
    fn check<'b>(&self, out: MatMut<'b>, x: MatRef<'b>) -> (SharedMut<'b>, MatRef<'b>) {
        let (out, x) = (out.checked(), x.checked());
        let (name, (weight, bias)) = (Self::NAME, self.weights());
        check_eq!((out.rows, out.cols), (x.rows, x.cols), "{name}: shape of the output");
        let n_bias = bias.map_or(x.cols, <[f32]>::len);
        for (what, len) in [("weight", weight.len()), ("bias", n_bias)] {
            check_eq!(len, x.cols, "{name}: values of the {what}");
        }
        (out.shared(), x)
    }

    #[track_caller]
    fn run_parallel(self, cpu: &Cpu, out: MatMut<'_>, x: MatRef<'_>) {
        let (out, x) = self.check(out, x);
        for_row_ranges(cpu, x.rows, x.cols, |rows| {
            cpu.isa.dispatch(NormRows { out, x, norm: self, rows });
        });
    }

    #[track_caller]
    fn run(self, isa: Isa, out: MatMut<'_>, x: MatRef<'_>) {
        let (out, x) = self.check(out, x);
        isa.dispatch(NormRows { out, x, norm: self, rows: 0..x.rows });
    }
}

struct NormRows<'a, N> {
    out: SharedMut<'a>,
    x: MatRef<'a>,
    norm: N,
    rows: Range<usize>,
}

impl<N: RowNorm> Kernel for NormRows<'_, N> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for r in self.rows {
            // SAFETY: each row belongs to one task, and one span is alive at a time.
            let out = unsafe { self.out.span(r, 0, self.x.cols) };
            self.norm.normalize(s, out, self.x.row(r));
        }
    }
}

#[derive(Clone, Copy)]
struct LayerNorm<'a>(NormArgs<&'a [f32]>);

impl RowNorm for LayerNorm<'_> {
    const NAME: &'static str = "layer_norm";

    fn weights(&self) -> (&[f32], Option<&[f32]>) {
        (self.0.weight, self.0.bias)
    }

    #[inline(always)]
    fn normalize<S: Simd>(self, s: S, out: &mut [f32], x: &[f32]) {
        let norm = self.0;
        let n = x.len() as f32;
        let (head, tail) = s.split(x);
        let mut sum = s.load_partial(tail);
        for &v in head {
            sum = s.add(sum, v);
        }
        let mean = s.reduce_sum(sum) / n;
        let mean_v = s.splat(mean);
        let mut squares = s.splat(0.0);
        for &v in head {
            let d = s.sub(v, mean_v);
            squares = s.mul_add(d, d, squares);
        }
        let tail_squares: f32 = tail.iter().map(|v| (v - mean) * (v - mean)).sum();
        let scale = 1.0 / ((s.reduce_sum(squares) + tail_squares) / n + norm.eps).sqrt();
        let scale_v = s.splat(scale);
        let (weight, weight_tail) = s.split(norm.weight);
        let bias = norm.bias.map(|bias| s.split(bias));
        let (out, out_tail) = s.split_mut(out);
        for i in 0..head.len() {
            let centred = s.mul(s.sub(head[i], mean_v), scale_v);
            out[i] = match bias {
                Some((bias, _)) => s.mul_add(centred, weight[i], bias[i]),
                None => s.mul(centred, weight[i]),
            };
        }
        for i in 0..tail.len() {
            let bias = bias.map_or(0.0, |(_, tail)| tail[i]);
            out_tail[i] = (tail[i] - mean) * scale * weight_tail[i] + bias;
        }
    }
}

#[derive(Clone, Copy)]
struct RmsNorm<'a> {
    norm: NormArgs<&'a [f32]>,
    accumulate: bool,
}

impl RowNorm for RmsNorm<'_> {
    const NAME: &'static str = "rms_norm";

    fn weights(&self) -> (&[f32], Option<&[f32]>) {
        (self.norm.weight, None)
    }

    #[inline(always)]
    fn normalize<S: Simd>(self, s: S, out: &mut [f32], x: &[f32]) {
        let Self { norm: NormArgs { weight, eps, .. }, accumulate } = self;
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
    use super::{layer_norm, rms_norm};
    use crate::cpu::test_data::{assert_close, random};
    use crate::cpu::{MatMut, MatRef};
    use crate::op::NormArgs;
    use crate::{Cpu, Isa, ThreadTeam};

    #[test]
    fn layer_norms_match_f64_at_odd_widths() {
        for isa in Isa::available() {
            let cpu = Cpu { isa, threads: ThreadTeam::new(2).unwrap() };
            for (t, d) in [(0, 4), (1, 1), (3, 15), (2, 16), (5, 49), (300, 384), (3, 513)] {
                let stride = d + 3;
                let x: Vec<f32> = random(t * stride, 3).iter().map(|v| v + 10.0).collect();
                let (weight, bias) = (random(d, 4), random(d, 5));
                let mut out = vec![0.0; t * d];
                layer_norm(
                    &cpu,
                    MatMut::packed(&mut out, t, d),
                    MatRef::new(&x, t, d, stride),
                    NormArgs { weight: &weight[..], bias: Some(&bias[..]), eps: 1e-5 },
                );
                let mut expected = Vec::new();
                for row in x.chunks(stride).map(|row| &row[..d]) {
                    let n = d as f64;
                    let mean = row.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
                    let var = row.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / n;
                    for i in 0..d {
                        let y = (f64::from(row[i]) - mean) / (var + 1e-5).sqrt();
                        expected.push(y * f64::from(weight[i]) + f64::from(bias[i]));
                    }
                }
                assert_close(&out, &expected, 2e-5, isa.name());
            }
        }
    }

    #[test]
    fn rms_norms_match_f64_at_odd_widths() {
        for isa in Isa::available() {
            let cpu = Cpu { isa, threads: ThreadTeam::new(2).unwrap() };
            for (t, d) in [(0, 4), (1, 1), (3, 15), (2, 16), (5, 49), (300, 384), (3, 513)] {
                let stride = d + 3;
                let (x, weight) = (random(t * stride, 3), random(d, 4));
                let x = MatRef::new(&x, t, d, stride);
                for accumulate in [false, true] {
                    let old = random(t * d, 5);
                    let mut out = old.clone();
                    let norm = NormArgs { weight: &weight[..], bias: None, eps: 1e-5 };
                    rms_norm(&cpu, MatMut::packed(&mut out, t, d), x, norm, accumulate);
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
