//! Ops that treat every value alike.

use super::math::gelu;
use crate::simd::{Isa, Kernel, Simd};

/// Exact GELU: `x[i] = x[i] / 2 * (1 + erf(x[i] / sqrt 2))`.
///
/// Numerics: `erf` has an absolute error of at most 2e-7. Source: Hendrycks & Gimpel 2016.
pub fn gelu_in_place(isa: Isa, x: &mut [f32]) {
    isa.dispatch(Gelu(x));
}

/// `y[i] += x[i]`.
///
/// # Panics
/// If the lengths differ.
#[track_caller]
pub fn add_in_place(isa: Isa, y: &mut [f32], x: &[f32]) {
    assert_eq!(y.len(), x.len(), "add: lengths differ");
    isa.dispatch(Add(y, x));
}

struct Gelu<'a>(&'a mut [f32]);

impl Kernel for Gelu<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (head, tail) = s.split_mut(self.0);
        for v in head {
            *v = gelu(s, *v);
        }
        let v = s.load_partial(tail);
        s.store_partial(tail, gelu(s, v));
    }
}

struct Add<'a>(&'a mut [f32], &'a [f32]);

impl Kernel for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (y, y_tail) = s.split_mut(self.0);
        let (x, x_tail) = s.split(self.1);
        for (y, &x) in y.iter_mut().zip(x) {
            *y = s.add(*y, x);
        }
        let sum = s.add(s.load_partial(y_tail), s.load_partial(x_tail));
        s.store_partial(y_tail, sum);
    }
}

#[cfg(test)]
mod tests {
    use super::{add_in_place, gelu_in_place};
    use crate::cpu::math::tests::erf_f64;
    use crate::cpu::test_data::{assert_close, random};
    use crate::simd::Isa;

    #[test]
    fn match_f64_at_every_length() {
        for isa in Isa::available() {
            for len in 0..=50 {
                let x: Vec<f32> = random(len, 1).iter().map(|x| 4.0 * x).collect();
                let mut y = x.clone();
                gelu_in_place(isa, &mut y);
                let expected: Vec<f64> = x
                    .iter()
                    .map(|&x| 0.5 * f64::from(x) * (1.0 + erf_f64(f64::from(x) * 0.5f64.sqrt())))
                    .collect();
                assert_close(&y, &expected, 1e-6, isa.name());

                let sum: Vec<f64> =
                    x.iter().zip(&y).map(|(&x, &y)| f64::from(x) + f64::from(y)).collect();
                add_in_place(isa, &mut y, &x);
                assert_close(&y, &sum, 1e-6, isa.name());
            }
        }
    }
}
