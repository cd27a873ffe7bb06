//! AVX-512 with VNNI and BF16: dot products of bf16 pairs and conversion from f32.

use crate::check_eq;
use std::arch::x86_64::{
    __m512bh, __m512i, _mm512_cvtne2ps_pbh, _mm512_dpbf16_ps, _mm512_permutexvar_epi16,
};

use super::avx512vnni::Avx512Vnni;
use super::token::{Token, token};
use super::vector::{F32, Simd, U32, delegate_simd};

token! {
    /// [`Avx512Vnni`] and `avx512bf16`, the dot product of bf16 pairs.
    Avx512Bf16(Avx512Vnni), std::is_x86_feature_detected!("avx512bf16"),
    "avx2", "fma", "bmi1", "bmi2", "lzcnt", "popcnt", "fxsr", "f16c",
    "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512vnni", "avx512bf16"
}

delegate_simd!(Avx512Bf16, Avx512Vnni, Self::vnni);

/// Permutation that interleaves the low and the high half of a vector of 32 values.
const INTERLEAVED: [u16; 32] = {
    let mut order = [0; 32];
    let mut i = 0;
    while i < 16 {
        (order[2 * i], order[2 * i + 1]) = (i as u16, i as u16 + 16);
        i += 1;
    }
    order
};

impl Avx512Bf16 {
    /// The token on CPUs where bf16 dot products have twice the throughput of f32 ones: AMD since Zen 4, not Intel's
    /// Sapphire Rapids.
    pub(super) fn try_fast() -> Option<Self> {
        super::amd_family().and(Self::try_new())
    }

    /// The token without bf16 dot products.
    #[inline(always)]
    pub(super) fn vnni(self) -> Avx512Vnni {
        self.0
    }

    /// `c[i] + a[2i] b[2i] + a[2i+1] b[2i+1]`; a lane of `a` and `b` holds two bf16 values, the first in its low half.
    /// Subnormal values count as zero.
    #[inline(always)]
    pub(crate) fn dot_bf16(self, a: U32<Self>, b: U32<Self>, c: F32<Self>) -> F32<Self> {
        // SAFETY: `self` proves the instruction; all are 64 bytes for which every bit pattern is valid.
        unsafe {
            let a = std::mem::transmute::<U32<Self>, __m512bh>(a);
            let b = std::mem::transmute::<U32<Self>, __m512bh>(b);
            bytemuck::cast(_mm512_dpbf16_ps(bytemuck::cast(c), a, b))
        }
    }

    /// Rounds to bf16 pairs: lane `i` of `even` in the low half of lane `i`, that of `odd` in the high half.
    #[inline(always)]
    pub(crate) fn pairs_bf16(self, even: F32<Self>, odd: F32<Self>) -> U32<Self> {
        let halves: __m512i = bytemuck::cast(self.narrow_bf16(even, odd));
        // SAFETY: `self` proves AVX-512 BW.
        bytemuck::cast(unsafe { _mm512_permutexvar_epi16(bytemuck::cast(INTERLEAVED), halves) })
    }

    /// Rounds to the nearest bf16: the values of `low`, then those of `high`, two per lane. Subnormal values become zero.
    #[inline(always)]
    pub(crate) fn narrow_bf16(self, low: F32<Self>, high: F32<Self>) -> U32<Self> {
        // SAFETY: `self` proves the instruction; both are 64 bytes for which every bit pattern is valid.
        unsafe {
            let halves = _mm512_cvtne2ps_pbh(bytemuck::cast(high), bytemuck::cast(low));
            std::mem::transmute::<__m512bh, U32<Self>>(halves)
        }
    }

    /// Rounds adjacent values of `from` to bf16 pairs, the first in the low half.
    ///
    /// # Panics
    /// If `from` is not twice as long as `to`.
    #[inline(always)]
    pub(crate) fn narrow_slice_bf16(self, to: &mut [u32], from: &[f32]) {
        check_eq!(2 * to.len(), from.len(), "narrow: length of the output");
        let (from, tail) = from.as_chunks::<32>();
        let (to, rest) = to.as_chunks_mut::<16>();
        for i in 0..from.len() {
            let [low, high]: [F32<Self>; 2] = bytemuck::cast(from[i]);
            to[i] = bytemuck::cast(self.narrow_bf16(low, high));
        }
        for (pair, values) in rest.iter_mut().zip(tail.chunks_exact(2)) {
            let (low, high) = (self.load_partial(&values[..1]), self.load_partial(&values[1..]));
            *pair = bytemuck::cast::<_, [u32; 16]>(self.pairs_bf16(low, high))[0];
        }
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use pulp::NullaryFnOnce;

    use super::Avx512Bf16;
    use crate::simd::{Simd, Token};

    struct Narrow<'a>(Avx512Bf16, &'a [f32], &'a mut [u32]);

    impl NullaryFnOnce for Narrow<'_> {
        type Output = ();

        #[inline(always)]
        fn call(self) {
            self.0.narrow_slice_bf16(self.2, self.1);
        }
    }

    struct Dot(Avx512Bf16, [f32; 16], [f32; 16], f32);

    impl NullaryFnOnce for Dot {
        type Output = [f32; 16];

        #[inline(always)]
        fn call(self) -> [f32; 16] {
            let Self(s, even, odd, c) = self;
            let a = s.pairs_bf16(bytemuck::cast(even), bytemuck::cast(odd));
            bytemuck::cast(s.dot_bf16(a, a, s.splat(c)))
        }
    }

    fn token(test: &str) -> Option<Avx512Bf16> {
        let token = Avx512Bf16::try_new();
        if token.is_none() {
            println!("SKIPPED {test}: this CPU has no products of bf16 values");
        }
        token
    }

    #[test]
    fn values_become_the_nearest_pairs() {
        let Some(s) = token("values_become_the_nearest_pairs") else { return };
        let mut values: Vec<f32> =
            (0..1002).map(|i| (i as f32 - 500.0) * 1.003 + 0.001 * (i * i) as f32).collect();
        values.extend([0.0, -0.0, 1.003_906_3, 1.011_718_8, f32::INFINITY, f32::MAX, 1e-30, -1e30]);
        for len in [0, 2, 30, 34, 1010] {
            let mut pairs = vec![0; len / 2];
            s.vectorize(Narrow(s, &values[..len], &mut pairs));
            for (i, pair) in pairs.iter().enumerate() {
                for (half, value) in [pair & 0xffff, pair >> 16].iter().zip(&values[2 * i..]) {
                    let expected = bf16::from_f32(*value).to_bits();
                    assert_eq!(*half, u32::from(expected), "{value}");
                }
            }
        }
    }

    #[test]
    fn products_of_both_halves_are_added() {
        let Some(s) = token("products_of_both_halves_are_added") else { return };
        let even: [f32; 16] = std::array::from_fn(|i| i as f32);
        let odd = even.map(|x| 0.5 - x);
        let sums = s.vectorize(Dot(s, even, odd, 3.0));
        for i in 0..16 {
            assert_eq!(sums[i], 3.0 + even[i] * even[i] + odd[i] * odd[i]);
        }
    }
}
