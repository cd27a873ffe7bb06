//! Reductions of one row of logits.

use super::math::exp;
use crate::simd::{Isa, Kernel, Simd};

/// Values that are summed in f32 before the sum is widened to f64.
const BLOCK_LEN: usize = 1024;

/// `max_i x[i]`; `-inf` of an empty row. NaN is ignored.
pub fn max(isa: Isa, x: &[f32]) -> f32 {
    isa.dispatch(Max { x })
}

/// `ln(sum_i exp(x[i]))`; `-inf` of an empty row or one of `-inf` alone.
///
/// Numerics: `exp` within 2 ULP; blocks of 1024 values are summed in f32, block sums in f64.
pub fn log_sum_exp(isa: Isa, x: &[f32]) -> f32 {
    let max = max(isa, x);
    if max == f32::NEG_INFINITY {
        return max;
    }
    max + isa.dispatch(SumExp { x, max }).ln() as f32
}

struct Max<'a> {
    x: &'a [f32],
}

impl Kernel for Max<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let (head, tail) = s.split(self.x);
        let mut max = s.splat(f32::NEG_INFINITY);
        for &v in head {
            max = s.select(s.less_than(max, v), v, max);
        }
        tail.iter().fold(s.reduce_max(max), |max, &v| max.max(v))
    }
}

/// `sum_i exp(x[i] - max)`.
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
        for block in self.x.chunks(BLOCK_LEN) {
            let (head, tail) = s.split(block);
            // Two accumulators hide the latency of `exp`.
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

#[cfg(test)]
mod tests {
    use super::{log_sum_exp, max};
    use crate::cpu::test_data::{assert_close, random};
    use crate::simd::Isa;

    #[test]
    fn match_f64_at_every_length() {
        for isa in Isa::available() {
            for len in (1..=50).chain([1500, 51_865]) {
                let x: Vec<f32> = random(len, 7).iter().map(|v| v * 20.0).collect();
                let lse = x.iter().map(|&v| f64::from(v).exp()).sum::<f64>().ln();
                assert_close(&[log_sum_exp(isa, &x)], &[lse], 5e-6, isa.name());
                let best = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                assert_eq!(max(isa, &x).to_bits(), best.to_bits());
            }
        }
    }

    #[test]
    fn suppressed_logits_count_nothing() {
        let ninf = f32::NEG_INFINITY;
        for isa in Isa::available() {
            let mut x = vec![ninf; 37];
            assert_eq!((max(isa, &x), log_sum_exp(isa, &x)), (ninf, ninf), "{isa}");
            assert_eq!((max(isa, &[]), log_sum_exp(isa, &[])), (ninf, ninf), "{isa}");
            x[20] = 2.0;
            x[36] = 2.0;
            let two = 2.0 + std::f32::consts::LN_2;
            assert!((log_sum_exp(isa, &x) - two).abs() < 1e-6, "{isa}");
            x[5] = f32::NAN;
            assert_eq!(max(isa, &x), 2.0, "{isa}");
        }
    }
}
