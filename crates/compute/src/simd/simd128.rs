//! WebAssembly `simd128`: 128-bit vectors. Products are added in 16 bits, and sums widened before they overflow.

use std::arch::wasm32::v128;

use half::{bf16, f16};

use super::int8::{Int8, RowInt8};
use super::token::token;
use super::vector::{F32, Simd, widen_f16};

token! {
    /// WebAssembly 128-bit vectors.
    WasmSimd128(pulp::wasm::Simd128), true, "simd128"
}

impl Simd for WasmSimd128 {
    type Pulp = pulp::wasm::Simd128;

    #[inline(always)]
    fn pulp(self) -> pulp::wasm::Simd128 {
        self.0
    }

    #[inline(always)]
    unsafe fn load_f16(self, p: *const f16) -> F32<Self> {
        // SAFETY: `load_f16` may read four values: 8 bytes from `p`.
        let wide = unsafe { self.simd128.i32x4_load_extend_u16x4(p.cast()) };
        // SAFETY: both are 16 bytes of plain integers.
        widen_f16(self, unsafe { std::mem::transmute(wide) })
    }

    #[inline(always)]
    unsafe fn load_bf16(self, p: *const bf16) -> F32<Self> {
        // SAFETY: `load_bf16` may read four values: 8 bytes from `p`.
        let wide = unsafe { self.simd128.i32x4_load_extend_u16x4(p.cast()) };
        // SAFETY: both are 16 bytes; every bit pattern is a valid f32.
        unsafe { std::mem::transmute(self.simd128.i32x4_shl(wide, 16)) }
    }
}

/// Sums of products of the first and last two lanes in 16 bits, and the 32-bit sums they were widened to.
#[derive(Clone, Copy, Debug)]
pub struct NarrowSums {
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

impl Int8 for WasmSimd128 {
    type U32s = v128;
    type Sums = NarrowSums;
    type Narrow = Self;

    const NAME: &'static str = "simd128";
    const GEMV_ROWS: usize = 4;
    const GEMM_ROWS: usize = 0;
    const HEADROOM: usize = 2;
    const BYTE_OFFSET: u8 = 0;

    #[inline(always)]
    fn narrow(self) -> Self {
        self
    }

    #[inline(always)]
    fn load_u32s<const N: usize>(self, x: &[u32; N], part: usize) -> v128 {
        vector(x.as_chunks::<4>().0[part])
    }

    #[inline(always)]
    fn load_u16s<const N: usize>(self, x: &[u16; N], part: usize) -> v128 {
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
    fn add_to_bytes(self, x: v128, y: u8) -> v128 {
        self.simd128.i8x16_add(x, self.simd128.u8x16_splat(y))
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
    fn start(self, _: i32) -> NarrowSums {
        let zero = self.simd128.i32x4_splat(0);
        NarrowSums { low: zero, high: zero, wide: zero }
    }

    #[inline(always)]
    fn dot4(self, sums: NarrowSums, w: v128, x: v128) -> NarrowSums {
        let low = self.simd128.i16x8_extmul_low_i8x16(w, x);
        let high = self.simd128.i16x8_extmul_high_i8x16(w, x);
        NarrowSums {
            low: self.simd128.i16x8_add(sums.low, low),
            high: self.simd128.i16x8_add(sums.high, high),
            wide: sums.wide,
        }
    }

    #[inline(always)]
    fn dot4_quad(self, sums: NarrowSums, w: v128, x: &[i32; 8], quad: usize) -> NarrowSums {
        self.dot4(sums, w, self.simd128.i32x4_splat(x[quad]))
    }

    #[inline(always)]
    fn widen(self, sums: NarrowSums) -> NarrowSums {
        let low = self.simd128.i32x4_extadd_pairwise_i16x8(sums.low);
        let high = self.simd128.i32x4_extadd_pairwise_i16x8(sums.high);
        let even = self.simd128.i32x4_shuffle::<0, 2, 4, 6>(low, high);
        let odd = self.simd128.i32x4_shuffle::<1, 3, 5, 7>(low, high);
        let wide = self.simd128.i32x4_add(even, odd);
        NarrowSums { wide: self.simd128.i32x4_add(sums.wide, wide), ..self.start(0) }
    }

    #[inline(always)]
    fn finish(self, sums: NarrowSums, offset: i32) -> F32<Self> {
        let wide = self.widen(sums).wide;
        self.to_floats(self.simd128.i32x4_add(wide, self.simd128.i32x4_splat(offset)))
    }
}

impl RowInt8 for WasmSimd128 {}
