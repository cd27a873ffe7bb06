//! Layer norm.

use std::ops::Range;

use super::matrix::{MatMut, MatRef, SharedMut};
use super::row_tasks::for_row_ranges;
use crate::simd::{Kernel, Simd};
use crate::{Cpu, Isa};

/// Parameters of [`layer_norm`].
#[derive(Debug, Clone, Copy)]
pub struct LayerNorm<'a> {
    /// `[D]`.
    pub weight: &'a [f32],
    /// `[D]`.
    pub bias: Option<&'a [f32]>,
    /// Added to the variance.
    pub eps: f32,
}

/// `out[t,d] = (x[t,d] - mean_d(x[t])) / sqrt(var_d(x[t]) + eps) * weight[d] + bias[d]`.
///
/// Shapes: `x`, `out` = `[T, D]`. Numerics: two passes, one f32 sum per lane, variance of the centred values. Source: Ba et
/// al. 2016, eq. 4, with PyTorch's `eps` placement.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn layer_norm(cpu: &Cpu, out: MatMut<'_>, x: MatRef<'_>, norm: LayerNorm<'_>) {
    let (out, x) = norm.check(out, x);
    for_row_ranges(cpu, x.rows, x.cols, |rows| {
        cpu.isa.dispatch(LayerNormRows { out, x, norm, rows });
    });
}

impl LayerNorm<'_> {
    #[track_caller]
    fn check<'b>(&self, out: MatMut<'b>, x: MatRef<'b>) -> (SharedMut<'b>, MatRef<'b>) {
        let (out, x) = (out.checked(), x.checked());
        assert_eq!((out.rows, out.cols), (x.rows, x.cols), "layer_norm: shapes differ");
        let n_bias = self.bias.map_or(x.cols, <[f32]>::len);
        assert_eq!(self.weight.len(), x.cols, "layer_norm: weight length is not the row width");
        assert_eq!(n_bias, x.cols, "layer_norm: bias length is not the row width");
        (out.shared(), x)
    }

    /// [`layer_norm`] on this thread.
    ///
    /// # Panics
    /// If the shapes do not fit.
    #[track_caller]
    pub fn run(self, isa: Isa, out: MatMut<'_>, x: MatRef<'_>) {
        let (out, x) = self.check(out, x);
        isa.dispatch(LayerNormRows { out, x, norm: self, rows: 0..x.rows });
    }
}

struct LayerNormRows<'a> {
    out: SharedMut<'a>,
    x: MatRef<'a>,
    norm: LayerNorm<'a>,
    rows: Range<usize>,
}

impl Kernel for LayerNormRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for r in self.rows {
            // SAFETY: `for_row_ranges` gives this task rows of its own; this is their only span here.
            let out = unsafe { self.out.span(r, 0, self.x.cols) };
            normalize(s, out, self.x.row(r), self.norm);
        }
    }
}

#[inline(always)]
fn normalize<S: Simd>(s: S, out: &mut [f32], x: &[f32], norm: LayerNorm<'_>) {
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

#[cfg(test)]
mod tests {
    use super::{LayerNorm, layer_norm};
    use crate::cpu::test_data::{assert_close, random};
    use crate::cpu::{MatMut, MatRef};
    use crate::{Cpu, Isa, ThreadTeam};

    #[test]
    fn matches_f64_at_odd_widths() {
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
                    LayerNorm { weight: &weight, bias: Some(&bias), eps: 1e-5 },
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
}
