//! [`PanelSimd`] on 512-bit vectors, the 16 rows of a panel: `vpdpbusd` multiplies 64 unsigned
//! bytes with signed activations and adds four products per row.

use std::arch::x86_64::{__m512i, _mm512_dpbusd_epi32};

use stonechat_compute::simd::{Avx512Vnni, F32, NullaryFnOnce};

use super::PanelSimd;
use crate::activation::QBlock;
use crate::packed::gemm::GemmSimd;
use crate::packed::{PANEL_ROWS, U32x16};

impl PanelSimd for Avx512Vnni {
    type U32s = __m512i;
    type Sums = __m512i;

    const MR: usize = 8;

    #[inline(always)]
    fn vectorize<F: NullaryFnOnce>(self, f: F) -> F::Output {
        Self::vectorize(self, f)
    }

    #[inline(always)]
    fn load_u32s(self, x: &U32x16, part: usize) -> __m512i {
        debug_assert_eq!(part, 0);
        bytemuck::cast(*x)
    }

    #[inline(always)]
    fn load_u16(self, x: &[u16; PANEL_ROWS], part: usize) -> __m512i {
        debug_assert_eq!(part, 0);
        self.avx512f._mm512_cvtepu16_epi32(bytemuck::cast(*x))
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

    const HEADROOM: usize = 1 << 16;
    const BYTE_OFFSET: u8 = 128;

    #[inline(always)]
    fn unbias(self, x: __m512i) -> __m512i {
        x
    }

    #[inline(always)]
    fn start(self, offset: i32) -> __m512i {
        self.avx512f._mm512_set1_epi32(offset)
    }

    #[inline(always)]
    fn dot(self, sums: __m512i, w: __m512i, x: &QBlock, quad: usize) -> __m512i {
        let four = self.avx512f._mm512_set1_epi32(x.quads()[quad]);
        // SAFETY: `self` proves AVX-512 VNNI, which pulp does not wrap.
        unsafe { _mm512_dpbusd_epi32(sums, w, four) }
    }

    #[inline(always)]
    fn dot_bytes(self, sums: __m512i, w: __m512i, x: &QBlock, quad: usize) -> __m512i {
        self.dot(sums, w, x, quad)
    }

    #[inline(always)]
    fn widen(self, sums: __m512i) -> __m512i {
        sums
    }

    #[inline(always)]
    fn finish(self, sums: __m512i, _: i32) -> F32<Self> {
        self.to_floats(sums)
    }
}

impl GemmSimd for Avx512Vnni {
    const HAS_VNNI: bool = true;

    #[inline(always)]
    fn add_to_bytes(self, x: __m512i, more: u8) -> __m512i {
        self.avx512bw._mm512_add_epi8(x, self.avx512f._mm512_set1_epi8(more as i8))
    }
}
