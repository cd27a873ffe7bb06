//! Vector `exp`, `erf`, `tanh` and the activations made of them, inlined into the kernels.

use crate::simd::{F32, Simd};

/// Lower bound of `exp`, which is 0 below it, where results would be subnormal.
const EXP_MIN: f32 = -87.336_54;
/// Upper bound of `exp`, which is constant above it, about `2.4e38`.
const EXP_MAX: f32 = 88.376_26;

/// `e^x` within 2 ULP for `-87.3 <= x <= 88.3`; 0 below (and for `-inf`), `2.4e38` above.
///
/// `x = n ln 2 + r` with `|r| <= ln 2 / 2`: a polynomial gives `e^r`, the exponent field `2^n`.
/// `ln 2` is split in two so that `r` is exact (Cody & Waite 1980); polynomial from Cephes `expf`.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: F32<S>) -> F32<S> {
    // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits of the mantissa.
    let magic = s.splat(12_582_912.0);
    let clamped = s.min(s.splat(EXP_MAX), s.max(s.splat(EXP_MIN), x));
    let shifted = s.mul_add(clamped, s.splat(std::f32::consts::LOG2_E), magic);
    let n = s.sub(shifted, magic);
    let r = s.mul_add(n, s.splat(-0.693_359_4), clamped);
    let r = s.mul_add(n, s.splat(2.121_944_4e-4), r);
    let mut p = s.splat(1.987_569_1e-4);
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = s.mul_add(p, r, s.splat(c));
    }
    let p = s.add(s.mul_add(p, s.mul(r, r), r), s.splat(1.0));
    let power = s.add_u32(
        s.mul_u32(s.to_bits(shifted), s.splat_u32(1 << 23)),
        s.splat_u32(1.0f32.to_bits()),
    );
    let y = s.mul(p, s.with_bits(power));
    s.select(s.less_than(x, s.splat(EXP_MIN)), s.splat(0.0), y)
}

/// Bound beyond which `erf` is 1 within the stated error.
const ERF_MAX: f32 = 3.92;

/// `erf(x) / x` as a polynomial in `2 (x / ERF_MAX)^2 - 1`: the Chebyshev interpolant of degree
/// 16 on `[-1, 1]`, written in powers, highest first.
const ERF_POLYNOMIAL: [f32; 17] = [
    3.788_009e-4,
    -9.379_143_6e-4,
    6.125_365_4e-4,
    -1.050_359e-3,
    4.282_948_7e-3,
    -8.162_879e-3,
    1.225_953_1e-2,
    -1.962_328_4e-2,
    3.058_619_3e-2,
    -4.358_337e-2,
    5.817_710_5e-2,
    -7.399_038e-2,
    9.062_331e-2,
    -1.091_818_1e-1,
    1.340_833_6e-1,
    -1.801_085_6e-1,
    3.607_368_2e-1,
];

/// `erf(x)` with an absolute error of at most 2e-7.
#[inline(always)]
pub(crate) fn erf<S: Simd>(s: S, x: F32<S>) -> F32<S> {
    let x = s.min(s.splat(ERF_MAX), s.max(s.splat(-ERF_MAX), x));
    let v = s.mul_add(s.mul(x, x), s.splat(2.0 / (ERF_MAX * ERF_MAX)), s.splat(-1.0));
    let mut p = s.splat(ERF_POLYNOMIAL[0]);
    for &c in &ERF_POLYNOMIAL[1..] {
        p = s.mul_add(p, v, s.splat(c));
    }
    s.min(s.splat(1.0), s.max(s.splat(-1.0), s.mul(p, x)))
}

/// `x / 2 * (1 + erf(x / sqrt 2))`, the exact GELU.
#[inline(always)]
pub(crate) fn gelu<S: Simd>(s: S, x: F32<S>) -> F32<S> {
    let half = s.mul(x, s.splat(0.5));
    s.mul_add(half, erf(s, s.mul(x, s.splat(std::f32::consts::FRAC_1_SQRT_2))), half)
}

/// `1 / (1 + e^-x)` within 4 ULP for `x >= -87.3`; 0 below.
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(s: S, x: F32<S>) -> F32<S> {
    // `exp` saturates, so that the quotient reaches 1 for large `x`, and is 0 where `e^-x` would overflow.
    let e = exp(s, x);
    s.div(e, s.add(e, s.splat(1.0)))
}

/// `x * sigmoid(x)`, also called swish; relative error at most 5e-7.
#[inline(always)]
pub(crate) fn silu<S: Simd>(s: S, x: F32<S>) -> F32<S> {
    s.mul(x, sigmoid(s, x))
}

/// `x / 2 * (1 + tanh(√(2/π) (x + 0.044715 x³)))`, the approximate GELU, with an absolute error of
/// at most 3e-7 for `|x| <= 1`, beyond of 3e-7 of `|x|`.
#[inline(always)]
pub(crate) fn gelu_tanh<S: Simd>(s: S, x: F32<S>) -> F32<S> {
    // (1 + tanh u) / 2 = sigmoid(2u), without cancellation where tanh is near -1.
    const SLOPE: f32 = 1.595_769;
    let cubic = s.mul_add(s.mul(x, x), s.splat(SLOPE * 0.044_715), s.splat(SLOPE));
    s.mul(x, sigmoid(s, s.mul(x, cubic)))
}

/// `tanh(x)` within 4 ULP.
///
/// Near 0 a polynomial in `x²` (Cephes `tanhf`), beyond `1 - 2 / (e^2|x| + 1)`.
#[inline(always)]
pub(crate) fn tanh<S: Simd>(s: S, x: F32<S>) -> F32<S> {
    let z = s.mul(x, x);
    let mut p = s.splat(-5.704_988_7e-3);
    for c in [2.063_909e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1] {
        p = s.mul_add(p, z, s.splat(c));
    }
    let near = s.mul_add(s.mul(p, z), x, x);
    let magnitude = s.abs(x);
    let e = exp(s, s.add(magnitude, magnitude));
    let far = s.sub(s.splat(1.0), s.div(s.splat(2.0), s.add(e, s.splat(1.0))));
    let far = s.select(s.less_than(x, s.splat(0.0)), s.sub(s.splat(0.0), far), far);
    s.select(s.less_than(magnitude, s.splat(0.625)), near, far)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{EXP_MIN, erf, exp, gelu_tanh, sigmoid, silu, tanh};
    use crate::simd::{Isa, Kernel, Simd};

    #[derive(Debug, Clone, Copy)]
    enum Function {
        Exp,
        Erf,
        Sigmoid,
        Silu,
        GeluTanh,
        Tanh,
    }

    struct Apply<'a>(Function, &'a mut [f32]);

    impl Kernel for Apply<'_> {
        type Output = ();

        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            for x in self.1.chunks_mut(S::LANES) {
                let v = s.load_partial(x);
                let y = match self.0 {
                    Function::Exp => exp(s, v),
                    Function::Erf => erf(s, v),
                    Function::Sigmoid => sigmoid(s, v),
                    Function::Silu => silu(s, v),
                    Function::GeluTanh => gelu_tanh(s, v),
                    Function::Tanh => tanh(s, v),
                };
                s.store_partial(x, y);
            }
        }
    }

    /// `erf` in f64: its Taylor series where that converges fast, else the continued fraction of
    /// `erfc`.
    pub(crate) fn erf_f64(x: f64) -> f64 {
        let a = x.abs();
        let y = if a < 3.0 {
            let (mut term, mut sum) = (a, a);
            for n in 1..200 {
                let n = f64::from(n);
                term *= -a * a / n;
                sum += term / (2.0 * n + 1.0);
            }
            sum * 2.0 / std::f64::consts::PI.sqrt()
        } else {
            let mut tail = 0.0;
            for k in (1..100).rev() {
                tail = f64::from(k) / 2.0 / (a + tail);
            }
            1.0 - (-a * a).exp() / ((a + tail) * std::f64::consts::PI.sqrt())
        };
        y.copysign(x)
    }

    fn grid(from: f32, to: f32, n: u32) -> Vec<f32> {
        (0..=n).map(|i| from + (to - from) * (f64::from(i) / f64::from(n)) as f32).collect()
    }

    /// `x / 2 * (1 + tanh(√(2/π) (x + 0.044715 x³)))` in f64.
    pub(crate) fn gelu_tanh_f64(x: f64) -> f64 {
        let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
        x / 2.0 * (1.0 + inner.tanh())
    }

    pub(crate) fn sigmoid_f64(x: f64) -> f64 {
        1.0 / (1.0 + (-x).exp())
    }

    /// The largest of `error(x, got)` over `x` on any tier.
    fn worst(function: Function, x: &[f32], error: impl Fn(f64, f64) -> f64) -> f64 {
        let mut worst = 0.0f64;
        for isa in Isa::available() {
            let mut y = x.to_vec();
            isa.dispatch(Apply(function, &mut y));
            let errors = x.iter().zip(&y).map(|(&x, &y)| error(f64::from(x), f64::from(y)));
            let of_isa = errors.fold(0.0, f64::max);
            println!("{function:?} on {isa}: {of_isa:.3e}");
            worst = worst.max(of_isa);
        }
        worst
    }

    fn ulps(exact: f64, got: f64) -> f64 {
        let magnitude = exact.abs() as f32;
        (got - exact).abs() / (f64::from(magnitude.next_up()) - f64::from(magnitude))
    }

    #[test]
    fn exp_is_within_two_ulp() {
        let x = grid(-87.3, 88.3, 300_001);
        assert!(worst(Function::Exp, &x, |x, y| ulps(x.exp(), y)) <= 2.0);
    }

    #[test]
    fn sigmoid_and_tanh_are_within_four_ulp() {
        let x = grid(-87.3, 100.0, 300_001);
        assert!(worst(Function::Sigmoid, &x, |x, y| ulps(sigmoid_f64(x), y)) <= 4.0);
        let mut x = grid(-12.0, 12.0, 300_001);
        x.extend([1e-30, -1e-9, 1e30, -1e30]);
        assert!(worst(Function::Tanh, &x, |x, y| ulps(x.tanh(), y)) <= 4.0);
    }

    #[test]
    fn gates_keep_their_stated_error() {
        let x = grid(-87.3, 87.3, 300_001);
        let silu = |x: f64| x * sigmoid_f64(x);
        let relative = |x: f64, y: f64| (y - silu(x)).abs() / silu(x).abs().max(1e-30);
        assert!(worst(Function::Silu, &x, relative) <= 5e-7);
        let x = grid(-12.0, 12.0, 300_001);
        let error = |x: f64, y: f64| (y - gelu_tanh_f64(x)).abs() / x.abs().max(1.0);
        assert!(worst(Function::GeluTanh, &x, error) <= 3e-7);
        for isa in Isa::available() {
            for function in [Function::Silu, Function::GeluTanh] {
                let mut x = [-1e30, -200.0, 0.0, 200.0, 1e30];
                isa.dispatch(Apply(function, &mut x));
                assert_eq!(x, [0.0, 0.0, 0.0, 200.0, 1e30], "{function:?} {isa}");
            }
        }
    }

    #[test]
    fn exp_at_the_edges() {
        for isa in Isa::available() {
            let mut x = [f32::NEG_INFINITY, -1e30, EXP_MIN.next_down(), 0.0, 1e30, f32::INFINITY];
            isa.dispatch(Apply(Function::Exp, &mut x));
            assert_eq!(x[..4], [0.0, 0.0, 0.0, 1.0], "{isa}");
            assert!(x[4] > 2e38 && x[4].is_finite() && x[5] == x[4], "{isa}: {x:?}");
        }
    }

    #[test]
    fn erf_error_is_at_most_2e_7() {
        let x = grid(-6.0, 6.0, 100_001);
        assert!(worst(Function::Erf, &x, |x, y| (y - erf_f64(x)).abs()) <= 2e-7);
    }
}
