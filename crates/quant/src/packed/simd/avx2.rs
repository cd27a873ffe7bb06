//! [`PanelSimd`] on 256-bit vectors: half of a panel's rows. Pairs of products are added in 16 bits, as long
//! as they fit there.

use std::arch::x86_64::__m256i;

use stonechat_compute::simd::{Avx2, F32, NullaryFnOnce};

use super::PanelSimd;
use crate::activation::Unit;
use crate::packed::Words;

/// Sums of pairs of products in 16 bits, and what was widened of them.
#[derive(Clone, Copy)]
pub(in super::super) struct Narrow(__m256i, __m256i);

impl PanelSimd for Avx2 {
    type Words = __m256i;
    type Sums = Narrow;

    const TILE_ROWS: usize = 4;
    const HEADROOM: usize = 1;
    const BYTE_OFFSET: u8 = 0;

    #[inline(always)]
    fn vectorize<F: NullaryFnOnce>(self, f: F) -> F::Output {
        Self::vectorize(self, f)
    }

    #[inline(always)]
    fn load_word(self, word: &Words, part: usize) -> __m256i {
        bytemuck::cast(word.0.as_chunks::<8>().0[part])
    }

    #[inline(always)]
    fn mask(self, x: __m256i, mask: u8) -> __m256i {
        self.avx2._mm256_and_si256(x, self.avx._mm256_set1_epi8(mask as i8))
    }

    #[inline(always)]
    fn or(self, x: __m256i, y: __m256i) -> __m256i {
        self.avx2._mm256_or_si256(x, y)
    }

    #[inline(always)]
    fn shift_right(self, x: __m256i, n: usize) -> __m256i {
        self.avx2._mm256_srl_epi16(x, self.sse2._mm_cvtsi32_si128(n as i32))
    }

    #[inline(always)]
    fn shift_left(self, x: __m256i, n: usize) -> __m256i {
        self.avx2._mm256_sll_epi16(x, self.sse2._mm_cvtsi32_si128(n as i32))
    }

    #[inline(always)]
    fn unbias(self, x: __m256i) -> __m256i {
        self.avx2._mm256_xor_si256(x, self.avx._mm256_set1_epi8(-128))
    }

    #[inline(always)]
    fn bits(self, x: __m256i, at: usize, n: usize) -> __m256i {
        let low = self.avx2._mm256_srl_epi32(x, self.sse2._mm_cvtsi32_si128(at as i32));
        self.avx2._mm256_and_si256(low, self.avx._mm256_set1_epi32((1 << n) - 1))
    }

    #[inline(always)]
    fn signed_byte(self, x: __m256i, at: usize) -> __m256i {
        let top = self.sse2._mm_cvtsi32_si128(24 - 8 * at as i32);
        let all = self.sse2._mm_cvtsi32_si128(24);
        self.avx2._mm256_sra_epi32(self.avx2._mm256_sll_epi32(x, top), all)
    }

    #[inline(always)]
    fn to_floats(self, x: __m256i) -> F32<Self> {
        bytemuck::cast(self.avx._mm256_cvtepi32_ps(x))
    }

    #[inline(always)]
    fn start(self, _: i32) -> Narrow {
        let zero = self.avx._mm256_setzero_si256();
        Narrow(zero, zero)
    }

    #[inline(always)]
    fn dot(self, sums: Narrow, codes: __m256i, x: &Unit, g: usize) -> Narrow {
        let four = self.avx._mm256_set1_epi32(x.words()[g]);
        let pairs = self.avx2._mm256_maddubs_epi16(codes, four);
        Narrow(self.avx2._mm256_add_epi16(sums.0, pairs), sums.1)
    }

    #[inline(always)]
    fn dot_bytes(self, sums: Narrow, bytes: __m256i, x: &Unit, g: usize) -> Narrow {
        // |byte| <= 128 and |x| <= 127: two products reach 32512 at most.
        let four = self.avx._mm256_set1_epi32(x.words()[g]);
        let four = self.avx2._mm256_sign_epi8(four, bytes);
        let pairs = self.avx2._mm256_maddubs_epi16(self.avx2._mm256_abs_epi8(bytes), four);
        Narrow(self.avx2._mm256_add_epi16(sums.0, pairs), sums.1)
    }

    #[inline(always)]
    fn widen(self, sums: Narrow) -> Narrow {
        let wide = self.avx2._mm256_madd_epi16(sums.0, self.avx._mm256_set1_epi16(1));
        Narrow(self.avx._mm256_setzero_si256(), self.avx2._mm256_add_epi32(sums.1, wide))
    }

    #[inline(always)]
    fn finish(self, sums: Narrow, offset: i32) -> F32<Self> {
        let wide = self.widen(sums).1;
        self.to_floats(self.avx2._mm256_add_epi32(wide, self.avx._mm256_set1_epi32(offset)))
    }

    #[inline(always)]
    fn prefetch(self, word: *const Words) {
        self.sse._mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(word.cast());
    }
}
