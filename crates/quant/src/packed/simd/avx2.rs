//! [`PanelSimd`] on 256-bit vectors: 8 of a panel's 16 rows. `vpdpbusd` of AVX-VNNI adds four products per row; AVX2
//! adds pairs of products in 16 bits (`vpmaddubsw`), and widens the sums before they overflow.

use std::arch::x86_64::{__m256i, _mm256_dpbusd_avx_epi32};

use stonechat_compute::simd::{Avx2, AvxVnni, F32, NullaryFnOnce};

use super::PanelSimd;
use crate::activation::QBlock;
use crate::packed::gemm::GemmSimd;
use crate::packed::{PANEL_ROWS, U32x16};

/// Sums of pairs of products in 16 bits, and the 32-bit sums they were widened to.
#[derive(Clone, Copy)]
pub(in super::super) struct Narrow(__m256i, __m256i);

/// Methods that do not depend on the dot product. `$avx2` gives the AVX2 token.
macro_rules! common {
    ($avx2:expr) => {
        type U32s = __m256i;

        const MR: usize = 4;

        #[inline(always)]
        fn vectorize<F: NullaryFnOnce>(self, f: F) -> F::Output {
            Self::vectorize(self, f)
        }

        #[inline(always)]
        fn load_u32s(self, x: &U32x16, part: usize) -> __m256i {
            bytemuck::cast(x.0.as_chunks::<8>().0[part])
        }

        #[inline(always)]
        fn load_u16(self, x: &[u16; PANEL_ROWS], part: usize) -> __m256i {
            $avx2(self).avx2._mm256_cvtepu16_epi32(bytemuck::cast(x.as_chunks::<8>().0[part]))
        }

        #[inline(always)]
        fn mask(self, x: __m256i, mask: u8) -> __m256i {
            $avx2(self).avx2._mm256_and_si256(x, $avx2(self).avx._mm256_set1_epi8(mask as i8))
        }

        #[inline(always)]
        fn or(self, x: __m256i, y: __m256i) -> __m256i {
            $avx2(self).avx2._mm256_or_si256(x, y)
        }

        #[inline(always)]
        fn shift_right(self, x: __m256i, n: usize) -> __m256i {
            $avx2(self).avx2._mm256_srl_epi16(x, $avx2(self).sse2._mm_cvtsi32_si128(n as i32))
        }

        #[inline(always)]
        fn shift_left(self, x: __m256i, n: usize) -> __m256i {
            $avx2(self).avx2._mm256_sll_epi16(x, $avx2(self).sse2._mm_cvtsi32_si128(n as i32))
        }

        #[inline(always)]
        fn lookup(self, table: &[u8; 16], x: __m256i) -> __m256i {
            let table = $avx2(self).avx2._mm256_broadcastsi128_si256(bytemuck::cast(*table));
            $avx2(self).avx2._mm256_shuffle_epi8(table, x)
        }

        #[inline(always)]
        fn bits(self, x: __m256i, at: usize, n: usize) -> __m256i {
            let low =
                $avx2(self).avx2._mm256_srl_epi32(x, $avx2(self).sse2._mm_cvtsi32_si128(at as i32));
            $avx2(self).avx2._mm256_and_si256(low, $avx2(self).avx._mm256_set1_epi32((1 << n) - 1))
        }

        #[inline(always)]
        fn signed_byte(self, x: __m256i, at: usize) -> __m256i {
            let top = $avx2(self).sse2._mm_cvtsi32_si128(24 - 8 * at as i32);
            let all = $avx2(self).sse2._mm_cvtsi32_si128(24);
            $avx2(self).avx2._mm256_sra_epi32($avx2(self).avx2._mm256_sll_epi32(x, top), all)
        }

        #[inline(always)]
        fn to_floats(self, x: __m256i) -> F32<Self> {
            bytemuck::cast($avx2(self).avx._mm256_cvtepi32_ps(x))
        }
    };
}

impl PanelSimd for Avx2 {
    common!(|token: Self| token);

    type Sums = Narrow;

    const HEADROOM: usize = 1;
    const BYTE_OFFSET: u8 = 0;

    #[inline(always)]
    fn unbias(self, x: __m256i) -> __m256i {
        self.avx2._mm256_xor_si256(x, self.avx._mm256_set1_epi8(-128))
    }

    #[inline(always)]
    fn start(self, _: i32) -> Narrow {
        let zero = self.avx._mm256_setzero_si256();
        Narrow(zero, zero)
    }

    #[inline(always)]
    fn dot(self, sums: Narrow, w: __m256i, x: &QBlock, quad: usize) -> Narrow {
        let four = self.avx._mm256_set1_epi32(x.quads()[quad]);
        let pairs = self.avx2._mm256_maddubs_epi16(w, four);
        Narrow(self.avx2._mm256_add_epi16(sums.0, pairs), sums.1)
    }

    #[inline(always)]
    fn dot_bytes(self, sums: Narrow, w: __m256i, x: &QBlock, quad: usize) -> Narrow {
        // |w| <= 128 and |x| <= 127: two products reach 32512 at most.
        let four = self.avx._mm256_set1_epi32(x.quads()[quad]);
        let four = self.avx2._mm256_sign_epi8(four, w);
        let pairs = self.avx2._mm256_maddubs_epi16(self.avx2._mm256_abs_epi8(w), four);
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
}

impl PanelSimd for AvxVnni {
    common!(Self::avx2);

    type Sums = __m256i;

    const HEADROOM: usize = 1 << 16;
    const BYTE_OFFSET: u8 = 128;

    #[inline(always)]
    fn unbias(self, x: __m256i) -> __m256i {
        x
    }

    #[inline(always)]
    fn start(self, offset: i32) -> __m256i {
        self.avx2().avx._mm256_set1_epi32(offset)
    }

    #[inline(always)]
    fn dot(self, sums: __m256i, w: __m256i, x: &QBlock, quad: usize) -> __m256i {
        let four = self.avx2().avx._mm256_set1_epi32(x.quads()[quad]);
        // SAFETY: the token proves AVX-VNNI.
        unsafe { _mm256_dpbusd_avx_epi32(sums, w, four) }
    }

    #[inline(always)]
    fn dot_bytes(self, sums: __m256i, w: __m256i, x: &QBlock, quad: usize) -> __m256i {
        self.dot(sums, w, x, quad)
    }

    #[inline(always)]
    fn widen(self, sums: __m256i) -> __m256i {
        sums
    }

    #[inline(always)]
    fn finish(self, sums: __m256i, _: i32) -> F32<Self> {
        self.to_floats(sums)
    }
}

impl GemmSimd for Avx2 {
    const HAS_VNNI: bool = false;

    #[inline(always)]
    fn add_to_bytes(self, x: __m256i, more: u8) -> __m256i {
        self.avx2._mm256_add_epi8(x, self.avx._mm256_set1_epi8(more as i8))
    }
}

impl GemmSimd for AvxVnni {
    const HAS_VNNI: bool = true;

    #[inline(always)]
    fn add_to_bytes(self, x: __m256i, more: u8) -> __m256i {
        self.avx2().add_to_bytes(x, more)
    }
}
