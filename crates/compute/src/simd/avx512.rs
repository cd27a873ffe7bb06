//! AVX-512 without VNNI: 512-bit vectors of f32; integers as with AVX2.

use crate::check_eq;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use pulp::x86::V4;

use super::avx2::{Avx2, transpose_u16};
use super::token::token;
use super::vector::{F32, Simd};

token! {
    /// [`Avx2`] and AVX-512 F, BW, CD, DQ and VL: 512-bit vectors (x86-64-v4).
    Avx512(V4), std::is_x86_feature_detected!("f16c"),
    "avx2", "fma", "bmi1", "bmi2", "lzcnt", "popcnt", "fxsr", "f16c",
    "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"
}

impl Avx512 {
    /// The token of 256-bit vectors.
    #[inline(always)]
    #[must_use]
    pub(super) fn avx2(self) -> Avx2 {
        // `try_new` found F16C, the feature of `Avx2` that `V4` does not prove.
        Avx2(*self.0)
    }
}

impl Simd for Avx512 {
    type Pulp = V4;

    #[inline(always)]
    fn pulp(self) -> V4 {
        self.0
    }

    #[inline(always)]
    unsafe fn load_f16(self, p: *const f16) -> F32<Self> {
        // SAFETY: 32 readable bytes, by the contract.
        let half = unsafe { self.avx._mm256_loadu_si256(p.cast()) };
        bytemuck::cast(self.avx512f._mm512_cvtph_ps(half))
    }

    #[inline(always)]
    fn narrow_f16(self, to: &mut [f16], from: &[f32]) {
        check_eq!(to.len(), from.len(), "narrow: length of the output");
        let (head, tail) = from.as_chunks::<16>();
        let (to, rest) = to.as_chunks_mut::<16>();
        for i in 0..head.len() {
            to[i] = bytemuck::cast(self.avx512f._mm512_cvtps_ph::<0>(bytemuck::cast(head[i])));
        }
        rest.convert_from_f32_slice(tail);
    }

    #[inline(always)]
    fn transpose_u16(self, rows: [[u16; 8]; 8]) -> [[u16; 8]; 8] {
        transpose_u16(self.sse2, rows)
    }

    #[inline(always)]
    unsafe fn load_bf16(self, p: *const bf16) -> F32<Self> {
        // SAFETY: 32 readable bytes, by the contract.
        let half = unsafe { self.avx._mm256_loadu_si256(p.cast()) };
        let wide = self.avx512f._mm512_cvtepu16_epi32(half);
        bytemuck::cast(self.avx512f._mm512_slli_epi32::<16>(wide))
    }
}
