//! [`PanelSimd`] on WebAssembly `simd128`: 4 of a panel's 16 rows. Products are added in 16 bits, and sums widened before
//! they overflow.

use std::arch::wasm32::v128;

use stonechat_compute::simd::{F32, NullaryFnOnce, WasmSimd128};

use super::PanelSimd;
use crate::activation::QBlock;
use crate::packed::{PANEL_ROWS, U32x16};

/// Sums of products of the first and last two rows in 16 bits, and the 32-bit sums they were widened to.
#[derive(Clone, Copy)]
pub(in crate::packed) struct Narrow {
    low: v128,
    high: v128,
    wide: v128,
}

/// Casts 16 bytes to a vector.
#[inline(always)]
fn vector<T: bytemuck::Pod>(bytes: T) -> v128 {
    const { assert!(size_of::<T>() == size_of::<v128>()) };
    // SAFETY: both have 16 bytes, as asserted, and any bits are a vector.
    unsafe { std::mem::transmute_copy(&bytes) }
}

impl PanelSimd for WasmSimd128 {
    type U32s = v128;
    type Sums = Narrow;

    const MR: usize = 4;
    const HEADROOM: usize = 2;
    const BYTE_OFFSET: u8 = 0;

    #[inline(always)]
    fn vectorize<F: NullaryFnOnce>(self, f: F) -> F::Output {
        Self::vectorize(self, f)
    }

    #[inline(always)]
    fn load_u32s(self, x: &U32x16, part: usize) -> v128 {
        vector(x.0.as_chunks::<4>().0[part])
    }

    #[inline(always)]
    fn load_u16(self, x: &[u16; PANEL_ROWS], part: usize) -> v128 {
        let [a, b, c, d] = x.as_chunks::<4>().0[part];
        self.simd128.i32x4_extend_low_u16x8(vector([a, b, c, d, 0, 0, 0, 0]))
    }

    #[inline(always)]
    fn mask(self, x: v128, mask: u8) -> v128 {
        self.simd128.v128_and(x, self.simd128.u8x16_splat(mask))
    }

    #[inline(always)]
    fn or(self, x: v128, y: v128) -> v128 {
        self.simd128.v128_or(x, y)
    }

    #[inline(always)]
    fn shift_right(self, x: v128, n: usize) -> v128 {
        // Lanes of 16 bits, since those of 8 take several instructions on most machines.
        self.simd128.u16x8_shr(x, n as u32)
    }

    #[inline(always)]
    fn shift_left(self, x: v128, n: usize) -> v128 {
        self.simd128.i16x8_shl(x, n as u32)
    }

    #[inline(always)]
    fn lookup(self, table: &[u8; 16], x: v128) -> v128 {
        self.simd128.i8x16_swizzle(vector(*table), x)
    }

    #[inline(always)]
    fn unbias(self, x: v128) -> v128 {
        self.simd128.v128_xor(x, self.simd128.u8x16_splat(128))
    }

    #[inline(always)]
    fn bits(self, x: v128, at: usize, n: usize) -> v128 {
        let low = self.simd128.u32x4_shr(x, at as u32);
        self.simd128.v128_and(low, self.simd128.i32x4_splat((1 << n) - 1))
    }

    #[inline(always)]
    fn signed_byte(self, x: v128, at: usize) -> v128 {
        self.simd128.i32x4_shr(self.simd128.i32x4_shl(x, 24 - 8 * at as u32), 24)
    }

    #[inline(always)]
    fn to_floats(self, x: v128) -> F32<Self> {
        // SAFETY: four lanes of 32 bits both, and any bits are floats.
        unsafe { std::mem::transmute(self.simd128.f32x4_convert_i32x4(x)) }
    }

    #[inline(always)]
    fn start(self, _: i32) -> Narrow {
        let zero = self.simd128.i32x4_splat(0);
        Narrow { low: zero, high: zero, wide: zero }
    }

    #[inline(always)]
    fn dot(self, sums: Narrow, w: v128, x: &QBlock, quad: usize) -> Narrow {
        let four = self.simd128.i32x4_splat(x.quads()[quad]);
        let low = self.simd128.i16x8_extmul_low_i8x16(w, four);
        let high = self.simd128.i16x8_extmul_high_i8x16(w, four);
        Narrow {
            low: self.simd128.i16x8_add(sums.low, low),
            high: self.simd128.i16x8_add(sums.high, high),
            wide: sums.wide,
        }
    }

    #[inline(always)]
    fn dot_bytes(self, sums: Narrow, w: v128, x: &QBlock, quad: usize) -> Narrow {
        self.dot(sums, w, x, quad)
    }

    #[inline(always)]
    fn widen(self, sums: Narrow) -> Narrow {
        let low = self.simd128.i32x4_extadd_pairwise_i16x8(sums.low);
        let high = self.simd128.i32x4_extadd_pairwise_i16x8(sums.high);
        let even = self.simd128.i32x4_shuffle::<0, 2, 4, 6>(low, high);
        let odd = self.simd128.i32x4_shuffle::<1, 3, 5, 7>(low, high);
        let wide = self.simd128.i32x4_add(even, odd);
        Narrow { wide: self.simd128.i32x4_add(sums.wide, wide), ..self.start(0) }
    }

    #[inline(always)]
    fn finish(self, sums: Narrow, offset: i32) -> F32<Self> {
        let wide = self.widen(sums).wide;
        self.to_floats(self.simd128.i32x4_add(wide, self.simd128.i32x4_splat(offset)))
    }
}
