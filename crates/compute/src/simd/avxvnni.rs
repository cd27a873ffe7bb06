//! AVX2 with AVX-VNNI: `vpdpbusd` on 256 bits, on CPUs without AVX-512.

use std::arch::x86_64::__m256i;

use super::avx2::{Avx2, int8_256, int8_dpbusd, row_int8_256};
use super::int8::{Int8, RowInt8};
use super::token::token;
use super::vector::{F32, Simd, delegate_simd};

token! {
    /// [`Avx2`] and `avxvnni`, the 8-bit dot product of CPUs without AVX-512.
    AvxVnni(Avx2), std::is_x86_feature_detected!("avxvnni"),
    "avx2", "fma", "bmi1", "bmi2", "lzcnt", "popcnt", "fxsr", "f16c", "avxvnni"
}

impl AvxVnni {
    /// The token without the 8-bit dot product.
    #[inline(always)]
    pub(super) fn avx2(self) -> Avx2 {
        self.0
    }
}

delegate_simd!(AvxVnni, Avx2, Self::avx2);

impl Int8 for AvxVnni {
    int8_256!();
    int8_dpbusd!(__m256i, _mm256_dpbusd_avx_epi32, avx._mm256_set1_epi32);

    const NAME: &'static str = "avxvnni";
    const GEMM_ROWS: usize = 6;
}

impl RowInt8 for AvxVnni {
    row_int8_256!();

    #[inline(always)]
    fn negate(self, x: __m256i, bits: u32) -> __m256i {
        self.0.negate(x, bits)
    }
}
