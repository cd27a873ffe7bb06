//! Softmax of one row, and the reductions of logits that sampling needs.

use super::math::exp;
use crate::simd::{Isa, Kernel, Simd};

/// `x[i] = exp(scale x[i] - max) / sum`, with `max` of the scaled row.
///
/// Numerics: `exp` within 2 ULP; `-inf` gives 0. A row of `-inf` alone gives NaN.
pub fn softmax_in_place(isa: Isa, x: &mut [f32], scale: f32) {
    let max = max_scaled(isa, x, scale);
    let sum = isa.dispatch(ExpInPlace { x, scale, max });
    isa.dispatch(Affine { x, scale: 1.0 / sum, offset: 0.0 });
}

/// Index of the first maximum; 0 if there is no value above `-inf`. NaN is never the maximum.
pub fn argmax(isa: Isa, x: &[f32]) -> usize {
    let max = max_scaled(isa, x, 1.0);
    x.iter().position(|&v| v == max).unwrap_or(0)
}

/// The first maximum; `-inf` of an empty row. NaN is never the maximum.
pub fn max(isa: Isa, x: &[f32]) -> f32 {
    max_scaled(isa, x, 1.0)
}

/// `ln(sum_i exp(x[i]))`; `-inf` of an empty row or one of `-inf` alone.
///
/// Numerics: `exp` within 2 ULP; sums of 1024 values in f32, sums of those in f64.
pub fn log_sum_exp(isa: Isa, x: &[f32]) -> f32 {
    let max = max(isa, x);
    if max == f32::NEG_INFINITY {
        return max;
    }
    max + isa.dispatch(SumExp { x, max }).ln() as f32
}

/// `x[i] -= log_sum_exp(x)`.
pub fn log_softmax_in_place(isa: Isa, x: &mut [f32]) {
    let offset = -log_sum_exp(isa, x);
    isa.dispatch(Affine { x, scale: 1.0, offset });
}

/// Values that are added in f32.
const SUM_LEN: usize = 1024;

fn max_scaled(isa: Isa, x: &[f32], scale: f32) -> f32 {
    isa.dispatch(MaxScaled { x, scale })
}

struct MaxScaled<'a> {
    x: &'a [f32],
    scale: f32,
}

impl Kernel for MaxScaled<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let (head, tail) = s.split(self.x);
        let scale = s.splat(self.scale);
        let mut max = s.splat(f32::NEG_INFINITY);
        for &v in head {
            let v = s.mul(v, scale);
            max = s.select(s.less_than(max, v), v, max);
        }
        let mut max = s.reduce_max(max);
        for &v in tail {
            max = max.max(v * self.scale);
        }
        max
    }
}

struct ExpInPlace<'a> {
    x: &'a mut [f32],
    scale: f32,
    max: f32,
}

impl Kernel for ExpInPlace<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let (scale, max) = (s.splat(self.scale), s.splat(-self.max));
        let (head, tail) = s.split_mut(self.x);
        let mut sum = s.splat(0.0);
        for v in head {
            *v = exp(s, s.mul_add(*v, scale, max));
            sum = s.add(sum, *v);
        }
        let y = exp(s, s.mul_add(s.load_partial(tail), scale, max));
        s.store_partial(tail, y);
        s.reduce_sum(sum) + tail.iter().sum::<f32>()
    }
}

struct SumExp<'a> {
    x: &'a [f32],
    max: f32,
}

impl Kernel for SumExp<'_> {
    type Output = f64;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f64 {
        let max = s.splat(self.max);
        let mut total = 0.0;
        for block in self.x.chunks(SUM_LEN) {
            let (head, tail) = s.split(block);
            // Two sums, so that the next exponential need not wait.
            let mut sums = [s.splat(0.0); 2];
            let (pairs, single) = head.as_chunks::<2>();
            for pair in pairs {
                for (sum, &v) in sums.iter_mut().zip(pair) {
                    *sum = s.add(*sum, exp(s, s.sub(v, max)));
                }
            }
            for &v in single {
                sums[0] = s.add(sums[0], exp(s, s.sub(v, max)));
            }
            total += f64::from(s.reduce_sum(s.add(sums[0], sums[1])));
            total += tail.iter().map(|v| f64::from((v - self.max).exp())).sum::<f64>();
        }
        total
    }
}

struct Affine<'a> {
    x: &'a mut [f32],
    scale: f32,
    offset: f32,
}

impl Kernel for Affine<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (head, tail) = s.split_mut(self.x);
        let (scale, offset) = (s.splat(self.scale), s.splat(self.offset));
        for v in head {
            *v = s.mul_add(*v, scale, offset);
        }
        for v in tail {
            *v = *v * self.scale + self.offset;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{argmax, log_softmax_in_place, log_sum_exp, max, softmax_in_place};
    use crate::cpu::test_data::{assert_close, random};
    use crate::simd::Isa;

    #[test]
    fn match_f64_at_every_length() {
        for isa in Isa::available() {
            for len in (1..=50).chain([1500, 51_865]) {
                let x: Vec<f32> = random(len, 7).iter().map(|v| v * 20.0).collect();
                let exps: Vec<f64> = x.iter().map(|&v| (0.125 * f64::from(v)).exp()).collect();
                let sum: f64 = exps.iter().sum();
                let expected: Vec<f64> = exps.iter().map(|e| e / sum).collect();
                let mut y = x.clone();
                softmax_in_place(isa, &mut y, 0.125);
                assert_close(&y, &expected, 1e-6, isa.name());

                let lse = x.iter().map(|&v| f64::from(v).exp()).sum::<f64>().ln();
                assert_close(&[log_sum_exp(isa, &x)], &[lse], 5e-6, isa.name());
                let expected: Vec<f64> = x.iter().map(|&v| f64::from(v) - lse).collect();
                let mut y = x.clone();
                log_softmax_in_place(isa, &mut y);
                assert_close(&y, &expected, 5e-5, isa.name());

                let best = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                assert_eq!(max(isa, &x).to_bits(), best.to_bits());
                assert_eq!(argmax(isa, &x), x.iter().position(|&v| v == best).unwrap());
            }
        }
    }

    #[test]
    fn suppressed_logits_count_nothing() {
        let ninf = f32::NEG_INFINITY;
        for isa in Isa::available() {
            let mut x = vec![ninf; 37];
            assert_eq!((argmax(isa, &x), log_sum_exp(isa, &x)), (0, ninf), "{isa}");
            assert_eq!((max(isa, &[]), log_sum_exp(isa, &[])), (ninf, ninf), "{isa}");
            x[5] = f32::NAN;
            x[20] = 2.0;
            x[36] = 2.0;
            assert_eq!(argmax(isa, &x), 20, "{isa}");
            x[5] = ninf;
            softmax_in_place(isa, &mut x, 1.0);
            assert_eq!((x[20], x[36], x[0]), (0.5, 0.5, 0.0), "{isa}");
        }
    }
}
