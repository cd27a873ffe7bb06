//! [`I8Dot`] on x86-64. 32 weights fill a 256-bit register; AVX-512 VNNI keeps that width, and its `vpdpbusd` replaces
//! `vpmaddubsw`, `vpmaddwd`.

use std::arch::x86_64::{__m256, __m256i, _mm256_dpbusd_epi32};

use stonechat_compute::simd::{Avx2, Avx512Vnni};

use super::I8Dot;
use crate::block::Half;

/// The byte that holds bit `i` of a `u32`.
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

impl I8Dot for Avx2 {
    type Bytes = __m256i;
    type Ints = __m256i;
    type Floats = __m256;

    const DOT_NAME: &'static str = "avx2-maddubs";

    #[inline(always)]
    fn half(self, x: Half) -> f32 {
        let bits = self.sse2._mm_cvtsi32_si128(i32::from(x.to_bits()));
        // SAFETY: `self` proves F16C, whose methods pulp does not wrap.
        let wide = unsafe { std::arch::x86_64::_mm_cvtph_ps(bits) };
        self.sse._mm_cvtss_f32(wide)
    }

    #[inline(always)]
    fn halves(self, x: [Half; 8]) -> __m256 {
        // SAFETY: F16C again, in its 256-bit form.
        unsafe { std::arch::x86_64::_mm256_cvtph_ps(bytemuck::cast(x)) }
    }

    #[inline(always)]
    fn splat_half(self, x: Half) -> __m256 {
        self.halves([x; 8])
    }

    #[inline(always)]
    fn widen_unsigned(self, x: [u8; 8]) -> __m256 {
        let x = bytemuck::cast([x, [0; 8]]);
        self.avx._mm256_cvtepi32_ps(self.avx2._mm256_cvtepu8_epi32(x))
    }

    #[inline(always)]
    fn widen_signed(self, x: [u8; 8]) -> __m256 {
        let x = bytemuck::cast([x, [0; 8]]);
        self.avx._mm256_cvtepi32_ps(self.avx2._mm256_cvtepi8_epi32(x))
    }

    #[inline(always)]
    fn load_twice(self, x: &[f32; 8]) -> [__m256; 2] {
        let x = self.load_floats(x);
        let low = bytemuck::cast([0i32, 0, 1, 1, 2, 2, 3, 3]);
        let high = bytemuck::cast([4i32, 4, 5, 5, 6, 6, 7, 7]);
        [self.avx2._mm256_permutevar8x32_ps(x, low), self.avx2._mm256_permutevar8x32_ps(x, high)]
    }

    #[inline(always)]
    fn load_bytes(self, x: &[u8; 32]) -> __m256i {
        bytemuck::cast(*x)
    }

    #[inline(always)]
    fn nibbles(self, x: &[u8; 16]) -> __m256i {
        let low = bytemuck::cast(*x);
        let high = self.sse2._mm_srli_epi16::<4>(low);
        self.mask(self.avx._mm256_set_m128i(high, low), 15)
    }

    #[inline(always)]
    fn spread_bits(self, bits: u32) -> __m256i {
        self.mask(byte_mask(self, bits), 16)
    }

    #[inline(always)]
    fn negate(self, x: __m256i, bits: u32) -> __m256i {
        let mask = byte_mask(self, bits);
        self.avx2._mm256_sub_epi8(self.avx2._mm256_xor_si256(x, mask), mask)
    }

    #[inline(always)]
    fn lookup(self, table: &[i8; 16], x: __m256i) -> __m256i {
        let table = self.avx2._mm256_broadcastsi128_si256(bytemuck::cast(*table));
        self.avx2._mm256_shuffle_epi8(table, x)
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
    fn shift_right<const N: i32>(self, x: __m256i) -> __m256i {
        self.avx2._mm256_srli_epi16::<N>(x)
    }

    #[inline(always)]
    fn shift_left<const N: i32>(self, x: __m256i) -> __m256i {
        self.avx2._mm256_slli_epi16::<N>(x)
    }

    #[inline(always)]
    fn dot_unsigned(self, w: __m256i, a: __m256i) -> __m256i {
        // Two products of at most 127 * 128 fit in the 16-bit lanes.
        let pairs = self.avx2._mm256_maddubs_epi16(w, a);
        self.avx2._mm256_madd_epi16(pairs, self.avx._mm256_set1_epi16(1))
    }

    #[inline(always)]
    fn dot_signed(self, w: __m256i, a: __m256i) -> __m256i {
        // |w| <= 128 and |a| <= 127: two products reach 32512 at most.
        let magnitude = self.avx2._mm256_abs_epi8(w);
        let pairs = self.avx2._mm256_maddubs_epi16(magnitude, self.avx2._mm256_sign_epi8(a, w));
        self.avx2._mm256_madd_epi16(pairs, self.avx._mm256_set1_epi16(1))
    }

    #[inline(always)]
    fn to_floats(self, x: __m256i) -> __m256 {
        self.avx._mm256_cvtepi32_ps(x)
    }

    #[inline(always)]
    fn load_floats(self, x: &[f32; 8]) -> __m256 {
        bytemuck::cast(*x)
    }

    #[inline(always)]
    fn to_array(self, x: __m256) -> [f32; 8] {
        bytemuck::cast(x)
    }

    #[inline(always)]
    fn splat_floats(self, x: f32) -> __m256 {
        self.avx._mm256_set1_ps(x)
    }

    #[inline(always)]
    fn pair(self, low: f32, high: f32) -> __m256 {
        let (low, high) = (self.splat_floats(low), self.splat_floats(high));
        self.avx._mm256_blend_ps::<0xf0>(low, high)
    }

    #[inline(always)]
    fn scale_floats(self, a: __m256, b: __m256) -> __m256 {
        self.avx._mm256_mul_ps(a, b)
    }

    #[inline(always)]
    fn fused(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        self.fma._mm256_fmadd_ps(a, b, c)
    }

    #[inline(always)]
    fn sum(self, x: __m256) -> f32 {
        let low = self.avx._mm256_castps256_ps128(x);
        let x = self.sse._mm_add_ps(low, self.avx._mm256_extractf128_ps::<1>(x));
        let x = self.sse._mm_add_ps(x, self.sse._mm_movehl_ps(x, x));
        let x = self.sse._mm_add_ss(x, self.sse._mm_shuffle_ps::<1>(x, x));
        self.sse._mm_cvtss_f32(x)
    }
}

/// Byte `i` is all ones where bit `i` is set.
#[inline(always)]
fn byte_mask(token: Avx2, bits: u32) -> __m256i {
    // Byte i gets the byte of `bits` that holds bit i, and then keeps that bit alone.
    let spread = token.avx._mm256_set1_epi32(bits as i32);
    let bytes = token.avx2._mm256_shuffle_epi8(spread, bytemuck::cast(BIT_BYTES));
    let kept = token.avx2._mm256_and_si256(bytes, bytemuck::cast(BITS));
    token.avx2._mm256_cmpeq_epi8(kept, bytemuck::cast(BITS))
}

/// The 256-bit token that a 512-bit CPU also satisfies.
#[inline(always)]
fn avx2(token: Avx512Vnni) -> Avx2 {
    token.avx512().avx2()
}

impl I8Dot for Avx512Vnni {
    type Bytes = __m256i;
    type Ints = __m256i;
    type Floats = __m256;

    const DOT_NAME: &'static str = "avx512-vnni";

    #[inline(always)]
    fn half(self, x: Half) -> f32 {
        avx2(self).half(x)
    }

    #[inline(always)]
    fn halves(self, x: [Half; 8]) -> __m256 {
        avx2(self).halves(x)
    }

    #[inline(always)]
    fn splat_half(self, x: Half) -> __m256 {
        avx2(self).splat_half(x)
    }

    #[inline(always)]
    fn widen_unsigned(self, x: [u8; 8]) -> __m256 {
        avx2(self).widen_unsigned(x)
    }

    #[inline(always)]
    fn widen_signed(self, x: [u8; 8]) -> __m256 {
        avx2(self).widen_signed(x)
    }

    #[inline(always)]
    fn load_twice(self, x: &[f32; 8]) -> [__m256; 2] {
        avx2(self).load_twice(x)
    }

    #[inline(always)]
    fn load_bytes(self, x: &[u8; 32]) -> __m256i {
        avx2(self).load_bytes(x)
    }

    #[inline(always)]
    fn nibbles(self, x: &[u8; 16]) -> __m256i {
        avx2(self).nibbles(x)
    }

    #[inline(always)]
    fn spread_bits(self, bits: u32) -> __m256i {
        self.avx512bw._mm256_maskz_set1_epi8(bits, 16)
    }

    #[inline(always)]
    fn negate(self, x: __m256i, bits: u32) -> __m256i {
        let zero = self.avx._mm256_setzero_si256();
        self.avx512bw._mm256_mask_sub_epi8(x, bits, zero, x)
    }

    #[inline(always)]
    fn lookup(self, table: &[i8; 16], x: __m256i) -> __m256i {
        avx2(self).lookup(table, x)
    }

    #[inline(always)]
    fn mask(self, x: __m256i, mask: u8) -> __m256i {
        avx2(self).mask(x, mask)
    }

    #[inline(always)]
    fn or(self, x: __m256i, y: __m256i) -> __m256i {
        avx2(self).or(x, y)
    }

    #[inline(always)]
    fn shift_right<const N: i32>(self, x: __m256i) -> __m256i {
        avx2(self).shift_right::<N>(x)
    }

    #[inline(always)]
    fn shift_left<const N: i32>(self, x: __m256i) -> __m256i {
        avx2(self).shift_left::<N>(x)
    }

    #[inline(always)]
    fn dot_unsigned(self, w: __m256i, a: __m256i) -> __m256i {
        let zero = self.avx._mm256_setzero_si256();
        // SAFETY: `self` proves AVX-512 VNNI and VL.
        unsafe { _mm256_dpbusd_epi32(zero, w, a) }
    }

    #[inline(always)]
    fn dot_signed(self, w: __m256i, a: __m256i) -> __m256i {
        let magnitude = self.avx2._mm256_abs_epi8(w);
        self.dot_unsigned(magnitude, self.avx2._mm256_sign_epi8(a, w))
    }

    #[inline(always)]
    fn to_floats(self, x: __m256i) -> __m256 {
        avx2(self).to_floats(x)
    }

    #[inline(always)]
    fn load_floats(self, x: &[f32; 8]) -> __m256 {
        avx2(self).load_floats(x)
    }

    #[inline(always)]
    fn to_array(self, x: __m256) -> [f32; 8] {
        avx2(self).to_array(x)
    }

    #[inline(always)]
    fn splat_floats(self, x: f32) -> __m256 {
        avx2(self).splat_floats(x)
    }

    #[inline(always)]
    fn pair(self, low: f32, high: f32) -> __m256 {
        avx2(self).pair(low, high)
    }

    #[inline(always)]
    fn scale_floats(self, a: __m256, b: __m256) -> __m256 {
        avx2(self).scale_floats(a, b)
    }

    #[inline(always)]
    fn fused(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        avx2(self).fused(a, b, c)
    }

    #[inline(always)]
    fn sum(self, x: __m256) -> f32 {
        avx2(self).sum(x)
    }
}
