//! AVX2, FMA and F16C: 256-bit vectors. Pairs of products are added in 16 bits (`vpmaddubsw`), and sums widened before they
//! overflow.

use crate::check_eq;
use std::arch::x86_64::{__m256i, _mm256_cvtph_ps, _mm256_cvtps_ph};

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use pulp::core_arch::x86::Sse2;
use pulp::x86::V3;

use super::int8::{Int8, RowInt8};
use super::token::token;
use super::vector::{F32, Simd};

token! {
    /// AVX2 with FMA and F16C: 256-bit vectors (x86-64-v3).
    Avx2(V3), std::is_x86_feature_detected!("f16c"),
    "avx2", "fma", "bmi1", "bmi2", "lzcnt", "popcnt", "fxsr", "f16c"
}

impl Simd for Avx2 {
    type Pulp = V3;

    #[inline(always)]
    fn pulp(self) -> V3 {
        self.0
    }

    #[inline(always)]
    unsafe fn load_f16(self, p: *const f16) -> F32<Self> {
        // SAFETY: 16 readable bytes, by the contract.
        let half = unsafe { self.sse2._mm_loadu_si128(p.cast()) };
        // SAFETY: `self` proves F16C, whose methods pulp does not wrap.
        bytemuck::cast(unsafe { _mm256_cvtph_ps(half) })
    }

    #[inline(always)]
    fn narrow_f16(self, to: &mut [f16], from: &[f32]) {
        check_eq!(to.len(), from.len(), "narrow: length of the output");
        let (head, tail) = from.as_chunks::<8>();
        let (to, rest) = to.as_chunks_mut::<8>();
        for i in 0..head.len() {
            // SAFETY: `self` proves F16C; pulp has no method for it.
            let half = unsafe { _mm256_cvtps_ph::<0>(bytemuck::cast(head[i])) };
            to[i] = bytemuck::cast(half);
        }
        rest.convert_from_f32_slice(tail);
    }

    #[inline(always)]
    fn transpose_u16(self, rows: [[u16; 8]; 8]) -> [[u16; 8]; 8] {
        transpose_u16(self.sse2, rows)
    }

    #[inline(always)]
    unsafe fn load_bf16(self, p: *const bf16) -> F32<Self> {
        // SAFETY: 16 readable bytes, by the contract.
        let half = unsafe { self.sse2._mm_loadu_si128(p.cast()) };
        let wide = self.avx2._mm256_cvtepu16_epi32(half);
        bytemuck::cast(self.avx2._mm256_slli_epi32::<16>(wide))
    }
}

/// Transposes by three rounds that interleave rows four apart, each of which rotates the bits of (row, column) by one.
#[inline(always)]
pub(super) fn transpose_u16(sse2: Sse2, rows: [[u16; 8]; 8]) -> [[u16; 8]; 8] {
    let mut rows: [std::arch::x86_64::__m128i; 8] = bytemuck::cast(rows);
    for _ in 0..3 {
        let mut mixed = rows;
        for i in 0..4 {
            mixed[2 * i] = sse2._mm_unpacklo_epi16(rows[i], rows[i + 4]);
            mixed[2 * i + 1] = sse2._mm_unpackhi_epi16(rows[i], rows[i + 4]);
        }
        rows = mixed;
    }
    bytemuck::cast(rows)
}

/// Sums of pairs of products in 16 bits, and the 32-bit sums they were widened to.
#[derive(Clone, Copy, Debug)]
pub struct NarrowSums(__m256i, __m256i);

/// Methods of [`Int8`] on 256 bits that do not depend on the dot product.
macro_rules! int8_256 {
    () => {
        type U32s = __m256i;
        type Narrow = Self;

        const GEMV_ROWS: usize = 4;

        #[inline(always)]
        fn narrow(self) -> Self {
            self
        }

        #[inline(always)]
        fn load_u32s<const N: usize>(self, x: &[u32; N], part: usize) -> __m256i {
            bytemuck::cast(x.as_chunks::<8>().0[part])
        }

        #[inline(always)]
        fn load_u16s<const N: usize>(self, x: &[u16; N], part: usize) -> __m256i {
            self.avx2._mm256_cvtepu16_epi32(bytemuck::cast(x.as_chunks::<8>().0[part]))
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
        fn add_to_bytes(self, x: __m256i, y: u8) -> __m256i {
            self.avx2._mm256_add_epi8(x, self.avx._mm256_set1_epi8(y as i8))
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
        fn lookup(self, table: &[u8; 16], x: __m256i) -> __m256i {
            let table = self.avx2._mm256_broadcastsi128_si256(bytemuck::cast(*table));
            self.avx2._mm256_shuffle_epi8(table, x)
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
    };
}
pub(super) use int8_256;

/// Methods of [`RowInt8`] on 256 bits that do not depend on masks.
macro_rules! row_int8_256 {
    () => {
        #[inline(always)]
        fn splat_halves(self, [low, high]: [f32; 2], _: usize) -> F32<Self> {
            let (low, high) = (self.avx._mm256_set1_ps(low), self.avx._mm256_set1_ps(high));
            bytemuck::cast(self.avx._mm256_blend_ps::<0xf0>(low, high))
        }

        #[inline(always)]
        fn dot4_signed(self, sums: Self::Sums, w: __m256i, x: __m256i) -> Self::Sums {
            // |w| <= 128 and |x| <= 127: two products reach 32512 at most.
            let x = self.avx2._mm256_sign_epi8(x, w);
            self.dot4(sums, self.avx2._mm256_abs_epi8(w), x)
        }
    };
}
pub(super) use row_int8_256;

/// Methods of [`Int8`] on vectors `$V` with `$dpbusd`, which adds four products of unsigned and signed bytes per lane.
/// `$set1` of the proof in field `$proof` broadcasts 32 bits.
macro_rules! int8_dpbusd {
    ($V:ty, $dpbusd:ident, $proof:ident.$set1:ident) => {
        type Sums = $V;

        const HEADROOM: usize = 1 << 16;
        const BYTE_OFFSET: u8 = 128;

        #[inline(always)]
        fn start(self, offset: i32) -> $V {
            self.$proof.$set1(offset)
        }

        #[inline(always)]
        fn dot4(self, sums: $V, w: $V, x: $V) -> $V {
            // SAFETY: the token proves the instruction.
            unsafe { std::arch::x86_64::$dpbusd(sums, w, x) }
        }

        #[inline(always)]
        fn dot4_quad(self, sums: $V, w: $V, x: &[i32; 8], quad: usize) -> $V {
            self.dot4(sums, w, self.$proof.$set1(x[quad]))
        }

        #[inline(always)]
        fn widen(self, sums: $V) -> $V {
            sums
        }

        #[inline(always)]
        fn finish(self, sums: $V, _: i32) -> F32<Self> {
            self.to_floats(sums)
        }
    };
}
pub(super) use int8_dpbusd;

/// The byte of a `u32` that holds bit `i`.
const BIT_BYTES: [u8; 32] = {
    let mut bytes = [0; 32];
    let mut i = 0;
    while i < 32 {
        bytes[i] = (i / 8) as u8;
        i += 1;
    }
    bytes
};

/// Bit `i` of a `u32` within its byte.
const BITS: [u8; 32] = {
    let mut bits = [0; 32];
    let mut i = 0;
    while i < 32 {
        bits[i] = 1 << (i % 8);
        i += 1;
    }
    bits
};

impl Int8 for Avx2 {
    int8_256!();

    type Sums = NarrowSums;

    const NAME: &'static str = "avx2";
    const GEMM_ROWS: usize = 4;
    const HEADROOM: usize = 1;
    const BYTE_OFFSET: u8 = 0;

    #[inline(always)]
    fn start(self, _: i32) -> NarrowSums {
        let zero = self.avx._mm256_setzero_si256();
        NarrowSums(zero, zero)
    }

    #[inline(always)]
    fn dot4(self, sums: NarrowSums, w: __m256i, x: __m256i) -> NarrowSums {
        let pairs = self.avx2._mm256_maddubs_epi16(w, x);
        NarrowSums(self.avx2._mm256_add_epi16(sums.0, pairs), sums.1)
    }

    #[inline(always)]
    fn dot4_quad(self, sums: NarrowSums, w: __m256i, x: &[i32; 8], quad: usize) -> NarrowSums {
        self.dot4(sums, w, self.avx._mm256_set1_epi32(x[quad]))
    }

    #[inline(always)]
    fn dot4_bytes(self, sums: NarrowSums, w: __m256i, x: &[i32; 8], quad: usize) -> NarrowSums {
        self.dot4_signed(sums, w, self.avx._mm256_set1_epi32(x[quad]))
    }

    #[inline(always)]
    fn widen(self, sums: NarrowSums) -> NarrowSums {
        let wide = self.avx2._mm256_madd_epi16(sums.0, self.avx._mm256_set1_epi16(1));
        NarrowSums(self.avx._mm256_setzero_si256(), self.avx2._mm256_add_epi32(sums.1, wide))
    }

    #[inline(always)]
    fn finish(self, sums: NarrowSums, offset: i32) -> F32<Self> {
        let wide = self.widen(sums).1;
        self.to_floats(self.avx2._mm256_add_epi32(wide, self.avx._mm256_set1_epi32(offset)))
    }
}

impl RowInt8 for Avx2 {
    row_int8_256!();

    #[inline(always)]
    fn negate(self, x: __m256i, bits: u32) -> __m256i {
        // Byte i gets the byte of `bits` that holds bit i, then keeps that bit alone.
        let spread = self.avx._mm256_set1_epi32(bits.cast_signed());
        let bytes = self.avx2._mm256_shuffle_epi8(spread, bytemuck::cast(BIT_BYTES));
        let alone = self.avx2._mm256_and_si256(bytes, bytemuck::cast(BITS));
        let mask = self.avx2._mm256_cmpeq_epi8(alone, bytemuck::cast(BITS));
        self.avx2._mm256_sub_epi8(self.avx2._mm256_xor_si256(x, mask), mask)
    }
}
