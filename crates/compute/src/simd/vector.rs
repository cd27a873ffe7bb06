//! [`Simd`]: vector operations of f32 kernels.
//!
//! Every method is one or a few instructions. Arithmetic delegates to `pulp`; loads that convert f16 and bf16, which
//! pulp lacks, are implemented per token.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use pulp::Simd as _;

use super::token::Token;

/// Vector of f32 values.
pub type F32<S> = <<S as Simd>::Pulp as pulp::Simd>::f32s;
/// Vector of as many u32 values as [`F32`] has.
pub type U32<S> = <<S as Simd>::Pulp as pulp::Simd>::u32s;
type M32<S> = <<S as Simd>::Pulp as pulp::Simd>::m32s;

/// Token whose vectors hold [`LANES`](Self::LANES) f32 values.
///
/// Outside of the token's feature context ([`Isa::dispatch`](super::Isa)) methods compile to function calls; they are
/// correct either way.
pub trait Simd: Token {
    /// The pulp token of the same vectors.
    type Pulp: pulp::Simd;

    /// Number of f32 values in a vector.
    const LANES: usize = <Self::Pulp as pulp::Simd>::F32_LANES;

    /// Whether kernels have variants for every number of rows, and with software prefetch. The tiers of plain Rust and of
    /// browsers have fewer: they would add to the size of the program and its compile time.
    const HAS_ALL_VARIANTS: bool = true;

    /// Whether an instruction converts f16 to f32. Without one, `load_f16` takes eight instructions.
    const HAS_F16: bool = true;

    /// Number of vector registers, which bounds the accumulators of a kernel.
    const N_REGISTERS: usize = <Self::Pulp as pulp::Simd>::REGISTER_COUNT;

    /// The pulp token.
    fn pulp(self) -> Self::Pulp;

    /// Loads `LANES` f16 values and converts them.
    ///
    /// # Safety
    /// - `p` is readable for `LANES` values; it needs no alignment.
    unsafe fn load_f16(self, p: *const f16) -> F32<Self>;

    /// Loads `LANES` bf16 values and converts them.
    ///
    /// # Safety
    /// - `p` is readable for `LANES` values; it needs no alignment.
    unsafe fn load_bf16(self, p: *const bf16) -> F32<Self>;

    /// Converts to f16, rounding to nearest even, as `f16::from_f32` does.
    ///
    /// # Panics
    /// If the lengths differ.
    #[inline(always)]
    fn narrow_f16(self, to: &mut [f16], from: &[f32]) {
        to.convert_from_f32_slice(from);
    }

    /// Transposes an 8 × 8 matrix.
    #[inline(always)]
    fn transpose_u16(self, rows: [[u16; 8]; 8]) -> [[u16; 8]; 8] {
        transposed(rows)
    }

    /// Loads `LANES` 8-bit integers and converts them.
    ///
    /// # Safety
    /// - `p` is readable for `LANES` values.
    #[inline(always)]
    unsafe fn load_i8(self, p: *const i8) -> F32<Self> {
        const MAX_LANES: usize = 16;
        let mut values = [0.0; MAX_LANES];
        for i in 0..Self::LANES.min(MAX_LANES) {
            // SAFETY: `i < LANES`. The compiler vectorizes the loop.
            values[i] = f32::from(unsafe { p.add(i).read() });
        }
        // SAFETY: no vector here has more than `MAX_LANES` lanes.
        unsafe { self.load(values.as_ptr()) }
    }

    /// Loads `LANES` values.
    ///
    /// # Safety
    /// - `p` is readable for `LANES` values; it needs no alignment.
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> F32<Self> {
        // SAFETY: a vector is `LANES` readable values, by the contract.
        unsafe { p.cast::<F32<Self>>().read_unaligned() }
    }

    /// Stores `LANES` values.
    ///
    /// # Safety
    /// - `p` is writable for `LANES` values; it needs no alignment.
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: F32<Self>) {
        // SAFETY: a vector is `LANES` writable values, by the contract.
        unsafe { p.cast::<F32<Self>>().write_unaligned(v) }
    }

    /// Loads a slice shorter than a vector; missing lanes are zero.
    #[inline(always)]
    fn load_partial(self, x: &[f32]) -> F32<Self> {
        self.pulp().partial_load_f32s(x)
    }

    /// Stores the first `x.len()` lanes, all of them if `x` is longer than a vector.
    #[inline(always)]
    fn store_partial(self, x: &mut [f32], v: F32<Self>) {
        self.pulp().partial_store_f32s(x, v);
    }

    /// Splits `x` into whole vectors and the tail.
    #[inline(always)]
    fn split(self, x: &[f32]) -> (&[F32<Self>], &[f32]) {
        Self::Pulp::as_simd_f32s(x)
    }

    /// Splits `x` into whole vectors and the tail.
    #[inline(always)]
    fn split_mut(self, x: &mut [f32]) -> (&mut [F32<Self>], &mut [f32]) {
        Self::Pulp::as_mut_simd_f32s(x)
    }

    /// All lanes `x`.
    #[inline(always)]
    fn splat(self, x: f32) -> F32<Self> {
        self.pulp().splat_f32s(x)
    }

    /// All lanes `x`.
    #[inline(always)]
    fn splat_u32(self, x: u32) -> U32<Self> {
        self.pulp().splat_u32s(x)
    }

    /// `a + b`.
    #[inline(always)]
    fn add(self, a: F32<Self>, b: F32<Self>) -> F32<Self> {
        self.pulp().add_f32s(a, b)
    }

    /// `a - b`.
    #[inline(always)]
    fn sub(self, a: F32<Self>, b: F32<Self>) -> F32<Self> {
        self.pulp().sub_f32s(a, b)
    }

    /// `a * b`.
    #[inline(always)]
    fn mul(self, a: F32<Self>, b: F32<Self>) -> F32<Self> {
        self.pulp().mul_f32s(a, b)
    }

    /// `a / b`.
    #[inline(always)]
    fn div(self, a: F32<Self>, b: F32<Self>) -> F32<Self> {
        self.pulp().div_f32s(a, b)
    }

    /// `a * b + c`, fused where the CPU fuses.
    #[inline(always)]
    fn mul_add(self, a: F32<Self>, b: F32<Self>, c: F32<Self>) -> F32<Self> {
        self.pulp().mul_add_e_f32s(a, b, c)
    }

    /// Lanewise minimum.
    #[inline(always)]
    fn min(self, a: F32<Self>, b: F32<Self>) -> F32<Self> {
        self.pulp().min_f32s(a, b)
    }

    /// Lanewise maximum.
    #[inline(always)]
    fn max(self, a: F32<Self>, b: F32<Self>) -> F32<Self> {
        self.pulp().max_f32s(a, b)
    }

    /// `|a|`.
    #[inline(always)]
    fn abs(self, a: F32<Self>) -> F32<Self> {
        self.and(a, self.splat_u32(0x7fff_ffff))
    }

    /// `a & mask`, bitwise.
    #[inline(always)]
    fn and(self, a: F32<Self>, mask: U32<Self>) -> F32<Self> {
        self.with_bits(self.pulp().and_u32s(self.to_bits(a), mask))
    }

    /// Lanes where `a < b`.
    #[inline(always)]
    fn less_than(self, a: F32<Self>, b: F32<Self>) -> M32<Self> {
        self.pulp().less_than_f32s(a, b)
    }

    /// Whether any lane of `mask` is set.
    #[inline(always)]
    fn any(self, mask: M32<Self>) -> bool {
        self.pulp().first_true_m32s(mask) < Self::LANES
    }

    /// Lanes of `yes` where `mask` is set, else of `no`.
    #[inline(always)]
    fn select(self, mask: M32<Self>, yes: F32<Self>, no: F32<Self>) -> F32<Self> {
        self.pulp().select_f32s(mask, yes, no)
    }

    /// Bit patterns as integers.
    #[inline(always)]
    fn to_bits(self, a: F32<Self>) -> U32<Self> {
        bytemuck::cast(a)
    }

    /// f32 values with these bit patterns.
    #[inline(always)]
    fn with_bits(self, a: U32<Self>) -> F32<Self> {
        bytemuck::cast(a)
    }

    /// Wrapping `a + b`.
    #[inline(always)]
    fn add_u32(self, a: U32<Self>, b: U32<Self>) -> U32<Self> {
        self.pulp().add_u32s(a, b)
    }

    /// Wrapping `a * b`; with a power of two, a left shift.
    #[inline(always)]
    fn mul_u32(self, a: U32<Self>, b: U32<Self>) -> U32<Self> {
        self.pulp().mul_u32s(a, b)
    }

    /// Sum of all lanes.
    #[inline(always)]
    fn reduce_sum(self, a: F32<Self>) -> f32 {
        self.pulp().reduce_sum_f32s(a)
    }

    /// Maximum of all lanes.
    #[inline(always)]
    fn reduce_max(self, a: F32<Self>) -> f32 {
        self.pulp().reduce_max_f32s(a)
    }
}

/// Transposes an `N × N` matrix. Uses loops, since closures of array methods are not inlined.
#[inline(always)]
pub(crate) fn transposed<T: Copy, const N: usize>(rows: [[T; N]; N]) -> [[T; N]; N] {
    let mut columns = rows;
    for i in 0..N {
        for j in 0..N {
            columns[i][j] = rows[j][i];
        }
    }
    columns
}

/// Implements [`Simd`] for `$token` by delegation to token `$lesser`, with the same vectors, which `$get` returns.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! delegate_simd {
    ($token:ty, $lesser:ty, $get:expr) => {
        impl Simd for $token {
            type Pulp = <$lesser as Simd>::Pulp;

            #[inline(always)]
            fn pulp(self) -> Self::Pulp {
                $get(self).pulp()
            }

            #[inline(always)]
            unsafe fn load_f16(self, p: *const half::f16) -> F32<Self> {
                // SAFETY: the contract is the same.
                unsafe { $get(self).load_f16(p) }
            }

            #[inline(always)]
            unsafe fn load_bf16(self, p: *const half::bf16) -> F32<Self> {
                // SAFETY: the contract is the same.
                unsafe { $get(self).load_bf16(p) }
            }

            #[inline(always)]
            fn narrow_f16(self, to: &mut [half::f16], from: &[f32]) {
                $get(self).narrow_f16(to, from);
            }

            #[inline(always)]
            fn transpose_u16(self, rows: [[u16; 8]; 8]) -> [[u16; 8]; 8] {
                $get(self).transpose_u16(rows)
            }
        }
    };
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) use delegate_simd;

/// Converts f16 to f32 exactly, without a conversion instruction. `shifted`: the bits, sign-extended to 32 and shifted left
/// by 13, which puts exponent and mantissa where f32 has them.
#[inline(always)]
pub(super) fn widen_f16<S: Simd>(s: S, shifted: U32<S>) -> F32<S> {
    let pulp = s.pulp();
    let value = widen_finite_f16(s, shifted);
    let magnitude = s.with_bits(pulp.and_u32s(s.to_bits(value), s.splat_u32(0x7fff_ffff)));
    let special = s.with_bits(pulp.or_u32s(s.to_bits(value), s.splat_u32(0x7f80_0000)));
    s.select(s.less_than(magnitude, s.splat(65536.0)), value, special)
}

/// [`widen_f16`] of finite values: infinities become 65536, and NaN larger values.
#[inline(always)]
pub(super) fn widen_finite_f16<S: Simd>(s: S, shifted: U32<S>) -> F32<S> {
    let bits = s.pulp().and_u32s(shifted, s.splat_u32(0x8fff_e000));
    // The multiplication rebiases the exponent and normalises subnormals.
    s.mul(s.with_bits(bits), s.splat(f32::from_bits((127 + 112) << 23)))
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::Simd;
    use crate::simd::{Isa, Kernel};

    struct Widen<'a>(&'a [u16], &'a mut [f32], bool);

    impl Kernel for Widen<'_> {
        type Output = ();

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) {
            let Self(bits, out, is_bf16) = self;
            assert!(bits.len().is_multiple_of(S::LANES) && bits.len() == out.len());
            for i in (0..bits.len()).step_by(S::LANES) {
                // SAFETY: `i + LANES <= len` of both, by the assertion and the loop's step.
                unsafe {
                    let p = bits.as_ptr().add(i);
                    let v =
                        if is_bf16 { simd.load_bf16(p.cast()) } else { simd.load_f16(p.cast()) };
                    simd.store(out.as_mut_ptr().add(i), v);
                }
            }
        }
    }

    struct Narrow<'a>(&'a [f32], &'a mut [f16]);

    impl Kernel for Narrow<'_> {
        type Output = ();

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) {
            simd.narrow_f16(self.1, self.0);
        }
    }

    #[test]
    fn values_narrow_to_the_nearest_half() {
        // Every half value, its neighbours in f32 and the ties between halves, and values out of range.
        let mut values: Vec<f32> = (0..=u16::MAX)
            .flat_map(|bits| {
                let exact = f16::from_bits(bits).to_f32().to_bits();
                [0, 1, 0x0fff, 0x1000, 0x1001].map(|add| f32::from_bits(exact.wrapping_add(add)))
            })
            .collect();
        values.extend([f32::MAX, f32::MIN, f32::MIN_POSITIVE, 1e-40, -1e-40, 65519.9, 65520.0]);
        let expected: Vec<u16> = values.iter().map(|&v| f16::from_f32(v).to_bits()).collect();
        for isa in Isa::available() {
            for skip in [0, 1, 5] {
                let mut out = vec![f16::ZERO; values.len() - skip];
                isa.dispatch(Narrow(&values[skip..], &mut out));
                for ((y, &e), v) in out.iter().zip(&expected[skip..]).zip(&values[skip..]) {
                    assert_eq!(y.to_bits(), e, "{isa}: {v}");
                }
            }
        }
    }

    struct Transpose([[u16; 8]; 8]);

    impl Kernel for Transpose {
        type Output = [[u16; 8]; 8];

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> [[u16; 8]; 8] {
            simd.transpose_u16(self.0)
        }
    }

    #[test]
    fn columns_become_rows() {
        let rows: [[u16; 8]; 8] =
            std::array::from_fn(|i| std::array::from_fn(|j| (10 * i + j) as u16));
        for isa in Isa::available() {
            let columns = isa.dispatch(Transpose(rows));
            for (i, j) in (0..64).map(|at| (at / 8, at % 8)) {
                assert_eq!(columns[j][i], rows[i][j], "{isa}");
            }
        }
    }

    #[track_caller]
    fn check(got: f32, expected: f32, what: &str) {
        let same = got.to_bits() == expected.to_bits() || (got.is_nan() && expected.is_nan());
        assert!(same, "{what}: got {got}, expected {expected}");
    }

    #[test]
    fn every_half_value_widens_exactly() {
        let bits: Vec<u16> = (0..=u16::MAX).collect();
        let mut out = vec![0.0; bits.len()];
        for isa in Isa::available() {
            isa.dispatch(Widen(&bits, &mut out, false));
            for (&b, &y) in bits.iter().zip(&out) {
                check(y, f16::from_bits(b).to_f32(), isa.name());
            }
            isa.dispatch(Widen(&bits, &mut out, true));
            for (&b, &y) in bits.iter().zip(&out) {
                check(y, bf16::from_bits(b).to_f32(), isa.name());
            }
        }
    }
}
