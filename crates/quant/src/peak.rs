//! Peak 8-bit multiply-add rate of a core: the compute roofline of integer matmuls.

use stonechat_compute::Isa;
#[cfg(target_arch = "x86_64")]
use stonechat_compute::simd::NullaryFnOnce;

/// Runs `rounds` thousand 8-bit multiply-add instructions, the widest of the tier, from registers and the first-level
/// cache on the calling thread. Returns the number of operations, two for each multiply-add, and the instruction's name;
/// `None` for tiers without such an instruction.
#[must_use]
pub fn int8_peak(isa: Isa, rounds: usize) -> Option<(f64, &'static str)> {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2(token) => Some(x86::run(x86::Avx2Sums(token), rounds, |f| token.vectorize(f))),
        #[cfg(target_arch = "x86_64")]
        Isa::AvxVnni(token) => {
            Some(x86::run(x86::AvxVnniSums(token), rounds, |f| token.vectorize(f)))
        }
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512(token) => {
            Some(x86::run(x86::Avx512Sums(token), rounds, |f| token.vectorize(f)))
        }
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Vnni(token) => {
            Some(x86::run(x86::VnniSums(token), rounds, |f| token.vectorize(f)))
        }
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Bf16(token) => {
            let token = token.vnni();
            Some(x86::run(x86::VnniSums(token), rounds, |f| token.vectorize(f)))
        }
        _ => {
            let _ = rounds;
            None
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{__m256i, __m512i, _mm256_dpbusd_avx_epi32, _mm512_dpbusd_epi32};
    use std::hint::black_box;

    use bytemuck::Pod;
    use stonechat_compute::simd::{Avx2, Avx512, Avx512Vnni, AvxVnni};

    use super::NullaryFnOnce;

    /// Independent sums: enough to hide the latency of the instruction.
    const N_SUMS: usize = 10;
    /// Operands of a round, each multiplied into all sums.
    const N_STEPS: usize = 100;

    /// `sum + w * x` of a tier.
    pub(super) trait Sums: Copy {
        type Bytes: Pod;
        const NAME: &'static str;

        fn add(self, sum: Self::Bytes, w: Self::Bytes, x: Self::Bytes) -> Self::Bytes;
    }

    #[derive(Clone, Copy)]
    pub(super) struct Avx2Sums(pub(super) Avx2);
    #[derive(Clone, Copy)]
    pub(super) struct AvxVnniSums(pub(super) AvxVnni);
    #[derive(Clone, Copy)]
    pub(super) struct Avx512Sums(pub(super) Avx512);
    #[derive(Clone, Copy)]
    pub(super) struct VnniSums(pub(super) Avx512Vnni);

    impl Sums for Avx2Sums {
        type Bytes = __m256i;
        const NAME: &'static str = "vpmaddubsw ymm";

        #[inline(always)]
        fn add(self, sum: __m256i, w: __m256i, x: __m256i) -> __m256i {
            let avx2 = self.0.avx2;
            let pairs = avx2._mm256_maddubs_epi16(w, x);
            let ones = self.0.avx._mm256_set1_epi16(1);
            avx2._mm256_add_epi32(sum, avx2._mm256_madd_epi16(pairs, ones))
        }
    }

    impl Sums for AvxVnniSums {
        type Bytes = __m256i;
        const NAME: &'static str = "vpdpbusd ymm";

        #[inline(always)]
        fn add(self, sum: __m256i, w: __m256i, x: __m256i) -> __m256i {
            let Self(_proof) = self;
            // SAFETY: the token proves AVX-VNNI, a feature that pulp does not know.
            unsafe { _mm256_dpbusd_avx_epi32(sum, w, x) }
        }
    }

    impl Sums for Avx512Sums {
        type Bytes = __m512i;
        const NAME: &'static str = "vpmaddubsw zmm";

        #[inline(always)]
        fn add(self, sum: __m512i, w: __m512i, x: __m512i) -> __m512i {
            let pairs = self.0.avx512bw._mm512_maddubs_epi16(w, x);
            let ones = self.0.avx512f._mm512_set1_epi16(1);
            let fours = self.0.avx512bw._mm512_madd_epi16(pairs, ones);
            self.0.avx512f._mm512_add_epi32(sum, fours)
        }
    }

    impl Sums for VnniSums {
        type Bytes = __m512i;
        const NAME: &'static str = "vpdpbusd zmm";

        #[inline(always)]
        fn add(self, sum: __m512i, w: __m512i, x: __m512i) -> __m512i {
            let Self(_proof) = self;
            // SAFETY: the token proves AVX-512 VNNI, whose methods pulp does not wrap.
            unsafe { _mm512_dpbusd_epi32(sum, w, x) }
        }
    }

    pub(super) struct Rounds<S>(S, usize);

    impl<S: Sums> NullaryFnOnce for Rounds<S> {
        type Output = ();

        #[inline(always)]
        fn call(self) {
            let Self(tier, rounds) = self;
            // The compiler must not know the operands, or products would be computed once.
            let w: [S::Bytes; N_STEPS] = black_box([bytemuck::Zeroable::zeroed(); N_STEPS]);
            let x: [S::Bytes; N_SUMS] = black_box([bytemuck::Zeroable::zeroed(); N_SUMS]);
            let w = &w[..black_box(N_STEPS)];
            let mut sums = x;
            for _ in 0..rounds {
                for &w in w {
                    for i in 0..N_SUMS {
                        sums[i] = tier.add(sums[i], w, x[i]);
                    }
                }
            }
            black_box(sums);
        }
    }

    pub(super) fn run<S: Sums>(
        tier: S,
        rounds: usize,
        vectorize: impl FnOnce(Rounds<S>),
    ) -> (f64, &'static str) {
        vectorize(Rounds(tier, rounds));
        let n = (rounds * N_STEPS * N_SUMS * size_of::<S::Bytes>()) as f64;
        (2.0 * n, S::NAME)
    }
}

#[cfg(test)]
mod tests {
    use stonechat_compute::Isa;

    use super::int8_peak;

    #[test]
    fn tiers_with_vectors_count_their_operations() {
        for isa in Isa::available() {
            let ops = int8_peak(isa, 2).map(|(ops, _)| ops);
            let expected = match isa.name() {
                "avx2" | "avxvnni" => Some(2.0 * 2000.0 * 32.0),
                "avx512" | "avx512vnni" | "avx512bf16" => Some(2.0 * 2000.0 * 64.0),
                _ => None,
            };
            assert_eq!(ops, expected, "{isa}");
        }
    }
}
