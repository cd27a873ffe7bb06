//! SSE4.2: 128-bit vectors without fused multiply-add, for x86-64 without AVX2. Pairs of products are added in 16 bits
//! (`pmaddubsw`), and sums widened before they overflow.

use std::arch::x86_64::__m128i;

use half::{bf16, f16};
use pulp::x86::V2;

use super::avx2::transpose_u16;
use super::int8::{Int8, RowInt8};
use super::token::token;
use super::vector::{F32, Simd, widen_f16};

token! {
    /// SSE4.2: 128-bit vectors (x86-64-v2).
    Sse42(V2), true,
    "sse", "sse2", "fxsr", "sse3", "ssse3", "sse4.1", "sse4.2", "popcnt"
}

impl Simd for Sse42 {
    type Pulp = V2;

    const HAS_F16: bool = false;

    #[inline(always)]
    fn pulp(self) -> V2 {
        self.0
    }

    #[inline(always)]
    unsafe fn load_f16(self, p: *const f16) -> F32<Self> {
        // SAFETY: 8 readable bytes, by the contract.
        let half = unsafe { self.sse2._mm_loadl_epi64(p.cast()) };
        let wide = self.sse4_1._mm_cvtepi16_epi32(half);
        widen_f16(self, bytemuck::cast(self.sse2._mm_slli_epi32::<13>(wide)))
    }

    #[inline(always)]
    unsafe fn load_bf16(self, p: *const bf16) -> F32<Self> {
        // SAFETY: 8 readable bytes, by the contract.
        let half = unsafe { self.sse2._mm_loadl_epi64(p.cast()) };
        let wide = self.sse4_1._mm_cvtepu16_epi32(half);
        bytemuck::cast(self.sse2._mm_slli_epi32::<16>(wide))
    }

    #[inline(always)]
    fn mul_add(self, a: F32<Self>, b: F32<Self>, c: F32<Self>) -> F32<Self> {
        // pulp fuses in software here.
        self.add(self.mul(a, b), c)
    }

    #[inline(always)]
    fn transpose_u16(self, rows: [[u16; 8]; 8]) -> [[u16; 8]; 8] {
        transpose_u16(self.sse2, rows)
    }
}

/// Sums of pairs of products in 16 bits, and the 32-bit sums they were widened to.
#[derive(Clone, Copy, Debug)]
pub struct NarrowSums(__m128i, __m128i);

impl Int8 for Sse42 {
    type U32s = __m128i;
    type Sums = NarrowSums;
    type Narrow = Self;

    const NAME: &'static str = "sse42";
    const GEMV_ROWS: usize = 4;
    const GEMM_ROWS: usize = 4;
    const HEADROOM: usize = 1;
    const BYTE_OFFSET: u8 = 0;

    #[inline(always)]
    fn narrow(self) -> Self {
        self
    }

    #[inline(always)]
    fn load_u32s<const N: usize>(self, x: &[u32; N], part: usize) -> __m128i {
        bytemuck::cast(x.as_chunks::<4>().0[part])
    }

    #[inline(always)]
    fn load_u16s<const N: usize>(self, x: &[u16; N], part: usize) -> __m128i {
        let [a, b, c, d] = x.as_chunks::<4>().0[part];
        self.sse4_1._mm_cvtepu16_epi32(bytemuck::cast([a, b, c, d, 0, 0, 0, 0]))
    }

    #[inline(always)]
    fn mask(self, x: __m128i, mask: u8) -> __m128i {
        self.sse2._mm_and_si128(x, self.sse2._mm_set1_epi8(mask as i8))
    }

    #[inline(always)]
    fn or(self, x: __m128i, y: __m128i) -> __m128i {
        self.sse2._mm_or_si128(x, y)
    }

    #[inline(always)]
    fn add_to_bytes(self, x: __m128i, y: u8) -> __m128i {
        self.sse2._mm_add_epi8(x, self.sse2._mm_set1_epi8(y as i8))
    }

    #[inline(always)]
    fn shift_right(self, x: __m128i, n: usize) -> __m128i {
        self.sse2._mm_srl_epi16(x, self.sse2._mm_cvtsi32_si128(n as i32))
    }

    #[inline(always)]
    fn shift_left(self, x: __m128i, n: usize) -> __m128i {
        self.sse2._mm_sll_epi16(x, self.sse2._mm_cvtsi32_si128(n as i32))
    }

    #[inline(always)]
    fn lookup(self, table: &[u8; 16], x: __m128i) -> __m128i {
        self.ssse3._mm_shuffle_epi8(bytemuck::cast(*table), x)
    }

    #[inline(always)]
    fn bits(self, x: __m128i, at: usize, n: usize) -> __m128i {
        let low = self.sse2._mm_srl_epi32(x, self.sse2._mm_cvtsi32_si128(at as i32));
        self.sse2._mm_and_si128(low, self.sse2._mm_set1_epi32((1 << n) - 1))
    }

    #[inline(always)]
    fn signed_byte(self, x: __m128i, at: usize) -> __m128i {
        let top = self.sse2._mm_cvtsi32_si128(24 - 8 * at as i32);
        self.sse2._mm_srai_epi32::<24>(self.sse2._mm_sll_epi32(x, top))
    }

    #[inline(always)]
    fn to_floats(self, x: __m128i) -> F32<Self> {
        bytemuck::cast(self.sse2._mm_cvtepi32_ps(x))
    }

    #[inline(always)]
    fn start(self, _: i32) -> NarrowSums {
        let zero = self.sse2._mm_setzero_si128();
        NarrowSums(zero, zero)
    }

    #[inline(always)]
    fn dot4(self, sums: NarrowSums, w: __m128i, x: __m128i) -> NarrowSums {
        let pairs = self.ssse3._mm_maddubs_epi16(w, x);
        NarrowSums(self.sse2._mm_add_epi16(sums.0, pairs), sums.1)
    }

    #[inline(always)]
    fn dot4_quad(self, sums: NarrowSums, w: __m128i, x: &[i32; 8], quad: usize) -> NarrowSums {
        self.dot4(sums, w, self.sse2._mm_set1_epi32(x[quad]))
    }

    #[inline(always)]
    fn dot4_bytes(self, sums: NarrowSums, w: __m128i, x: &[i32; 8], quad: usize) -> NarrowSums {
        self.dot4_signed(sums, w, self.sse2._mm_set1_epi32(x[quad]))
    }

    #[inline(always)]
    fn widen(self, sums: NarrowSums) -> NarrowSums {
        let wide = self.sse2._mm_madd_epi16(sums.0, self.sse2._mm_set1_epi16(1));
        NarrowSums(self.sse2._mm_setzero_si128(), self.sse2._mm_add_epi32(sums.1, wide))
    }

    #[inline(always)]
    fn finish(self, sums: NarrowSums, offset: i32) -> F32<Self> {
        let wide = self.widen(sums).1;
        self.to_floats(self.sse2._mm_add_epi32(wide, self.sse2._mm_set1_epi32(offset)))
    }
}

impl RowInt8 for Sse42 {
    #[inline(always)]
    fn dot4_signed(self, sums: NarrowSums, w: __m128i, x: __m128i) -> NarrowSums {
        // |w| <= 128 and |x| <= 127: two products reach 32512 at most.
        let x = self.ssse3._mm_sign_epi8(x, w);
        self.dot4(sums, self.ssse3._mm_abs_epi8(w), x)
    }
}
