//! AVX-512 with VNNI: `vpdpbusd` multiplies 64 unsigned bytes with signed ones and adds four products per lane.

use std::arch::x86_64::{__m256i, __m512i};

use pulp::NullaryFnOnce;

use super::avx2::{Avx2, int8_256, int8_dpbusd, row_int8_256};
use super::avx512::Avx512;
use super::int8::{Int8, RowInt8};
use super::token::{Token, token};
use super::vector::{F32, Simd, delegate_simd};

token! {
    /// [`Avx512`] and `avx512vnni`, the 8-bit dot product.
    Avx512Vnni(Avx512), std::is_x86_feature_detected!("avx512vnni"),
    "avx2", "fma", "bmi1", "bmi2", "lzcnt", "popcnt", "fxsr", "f16c",
    "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512vnni"
}

impl Avx512Vnni {
    /// The token without the 8-bit dot product.
    #[inline(always)]
    pub(super) fn avx512(self) -> Avx512 {
        self.0
    }
}

delegate_simd!(Avx512Vnni, Avx512, Self::avx512);

impl Int8 for Avx512Vnni {
    int8_dpbusd!(__m512i, _mm512_dpbusd_epi32, avx512f._mm512_set1_epi32);

    type U32s = __m512i;
    type Narrow = Avx512Vnni256;

    const NAME: &'static str = "avx512vnni";
    const GEMV_ROWS: usize = 8;
    const GEMM_ROWS: usize = 6;

    #[inline(always)]
    fn narrow(self) -> Avx512Vnni256 {
        Avx512Vnni256(self)
    }

    #[inline(always)]
    fn load_u32s<const N: usize>(self, x: &[u32; N], part: usize) -> __m512i {
        bytemuck::cast(x.as_chunks::<16>().0[part])
    }

    #[inline(always)]
    fn load_u16s<const N: usize>(self, x: &[u16; N], part: usize) -> __m512i {
        self.avx512f._mm512_cvtepu16_epi32(bytemuck::cast(x.as_chunks::<16>().0[part]))
    }

    #[inline(always)]
    fn mask(self, x: __m512i, mask: u8) -> __m512i {
        self.avx512f._mm512_and_si512(x, self.avx512f._mm512_set1_epi8(mask as i8))
    }

    #[inline(always)]
    fn or(self, x: __m512i, y: __m512i) -> __m512i {
        self.avx512f._mm512_or_si512(x, y)
    }

    #[inline(always)]
    fn add_to_bytes(self, x: __m512i, y: u8) -> __m512i {
        self.avx512bw._mm512_add_epi8(x, self.avx512f._mm512_set1_epi8(y as i8))
    }

    #[inline(always)]
    fn shift_right(self, x: __m512i, n: usize) -> __m512i {
        self.avx512bw._mm512_srl_epi16(x, self.sse2._mm_cvtsi32_si128(n as i32))
    }

    #[inline(always)]
    fn shift_left(self, x: __m512i, n: usize) -> __m512i {
        self.avx512bw._mm512_sll_epi16(x, self.sse2._mm_cvtsi32_si128(n as i32))
    }

    #[inline(always)]
    fn lookup(self, table: &[u8; 16], x: __m512i) -> __m512i {
        let table = self.avx512f._mm512_broadcast_i32x4(bytemuck::cast(*table));
        self.avx512bw._mm512_shuffle_epi8(table, x)
    }

    #[inline(always)]
    fn bits(self, x: __m512i, at: usize, n: usize) -> __m512i {
        let low = self.avx512f._mm512_srl_epi32(x, self.sse2._mm_cvtsi32_si128(at as i32));
        self.avx512f._mm512_and_si512(low, self.avx512f._mm512_set1_epi32((1 << n) - 1))
    }

    #[inline(always)]
    fn signed_byte(self, x: __m512i, at: usize) -> __m512i {
        let top = self.sse2._mm_cvtsi32_si128(24 - 8 * at as i32);
        let all = self.sse2._mm_cvtsi32_si128(24);
        self.avx512f._mm512_sra_epi32(self.avx512f._mm512_sll_epi32(x, top), all)
    }

    #[inline(always)]
    fn to_floats(self, x: __m512i) -> F32<Self> {
        bytemuck::cast(self.avx512f._mm512_cvtepi32_ps(x))
    }
}

/// [`Avx512Vnni`] on 256-bit vectors.
#[derive(Clone, Copy, Debug)]
pub struct Avx512Vnni256(Avx512Vnni);

impl std::ops::Deref for Avx512Vnni256 {
    type Target = Avx512Vnni;

    #[inline(always)]
    fn deref(&self) -> &Avx512Vnni {
        &self.0
    }
}

impl Token for Avx512Vnni256 {
    fn try_new() -> Option<Self> {
        Avx512Vnni::try_new().map(Self)
    }

    #[inline(always)]
    fn vectorize<F: NullaryFnOnce>(self, f: F) -> F::Output {
        self.0.vectorize(f)
    }
}

impl Avx512Vnni256 {
    #[inline(always)]
    fn avx2(self) -> Avx2 {
        self.0.avx512().avx2()
    }
}

delegate_simd!(Avx512Vnni256, Avx2, Self::avx2);

impl Int8 for Avx512Vnni256 {
    int8_256!();
    int8_dpbusd!(__m256i, _mm256_dpbusd_epi32, avx._mm256_set1_epi32);

    const NAME: &'static str = Avx512Vnni::NAME;
    const GEMM_ROWS: usize = Avx512Vnni::GEMM_ROWS;
}

impl RowInt8 for Avx512Vnni256 {
    row_int8_256!();

    #[inline(always)]
    fn negate(self, x: __m256i, bits: u32) -> __m256i {
        let zero = self.avx._mm256_setzero_si256();
        self.avx512bw._mm256_mask_sub_epi8(x, bits, zero, x)
    }
}
