//! 128-bit vectors of WebAssembly: methods that its tiers have in common. A module has one of them.

use std::arch::wasm32::v128;

/// Casts 16 bytes to a vector.
#[inline(always)]
pub(super) fn vector<T: bytemuck::Pod>(bytes: T) -> v128 {
    const { assert!(size_of::<T>() == size_of::<v128>()) };
    // SAFETY: both have 16 bytes, as asserted, and any bits are a vector.
    unsafe { std::mem::transmute_copy(&bytes) }
}

/// Casts a vector to 16 bytes of plain numbers.
#[inline(always)]
pub(super) fn numbers<T: bytemuck::Pod>(vector: v128) -> T {
    const { assert!(size_of::<T>() == size_of::<v128>()) };
    // SAFETY: both have 16 bytes, as asserted, and any bits are a value of a plain type.
    unsafe { std::mem::transmute_copy(&vector) }
}

/// Methods of [`Simd`] that do not depend on relaxed instructions.
macro_rules! simd_wasm {
    () => {
        type Pulp = pulp::wasm::Simd128;

        const HAS_ALL_VARIANTS: bool = false;
        // x86-64 without AVX-512 has 16, ARM 32. pulp counts those of ARM.
        const N_REGISTERS: usize = 16;
        const HAS_F16: bool = false;

        #[inline(always)]
        fn pulp(self) -> pulp::wasm::Simd128 {
            self.0
        }

        #[inline(always)]
        unsafe fn load_f16(self, p: *const half::f16) -> $crate::simd::F32<Self> {
            // SAFETY: `load_f16` may read four values: 8 bytes from `p`.
            let wide = unsafe { self.simd128.i32x4_load_extend_i16x4(p.cast()) };
            let shifted = $crate::simd::wasm::numbers(self.simd128.i32x4_shl(wide, 13));
            $crate::simd::vector::widen_f16(self, shifted)
        }

        #[inline(always)]
        unsafe fn load_bf16(self, p: *const half::bf16) -> $crate::simd::F32<Self> {
            // SAFETY: `load_bf16` may read four values: 8 bytes from `p`.
            let wide = unsafe { self.simd128.i32x4_load_extend_u16x4(p.cast()) };
            $crate::simd::wasm::numbers(self.simd128.i32x4_shl(wide, 16))
        }

        #[inline(always)]
        fn min(
            self,
            a: $crate::simd::F32<Self>,
            b: $crate::simd::F32<Self>,
        ) -> $crate::simd::F32<Self> {
            // One instruction on x86-64, where IEEE's minimum takes eight. `b` if one is NaN, as there.
            let min = self
                .simd128
                .f32x4_pmin($crate::simd::wasm::vector(b), $crate::simd::wasm::vector(a));
            $crate::simd::wasm::numbers(min)
        }

        #[inline(always)]
        fn max(
            self,
            a: $crate::simd::F32<Self>,
            b: $crate::simd::F32<Self>,
        ) -> $crate::simd::F32<Self> {
            let max = self
                .simd128
                .f32x4_pmax($crate::simd::wasm::vector(b), $crate::simd::wasm::vector(a));
            $crate::simd::wasm::numbers(max)
        }
    };
}
pub(super) use simd_wasm;

/// Methods of [`Int8`] that do not depend on the dot product. Weight bytes are signed.
macro_rules! int8_wasm {
    () => {
        type U32s = v128;
        type Narrow = Self;

        const GEMV_ROWS: usize = 4;

        #[inline(always)]
        fn narrow(self) -> Self {
            self
        }

        #[inline(always)]
        fn load_u32s<const N: usize>(self, x: &[u32; N], part: usize) -> v128 {
            $crate::simd::wasm::vector(x.as_chunks::<4>().0[part])
        }

        #[inline(always)]
        fn load_u16s<const N: usize>(self, x: &[u16; N], part: usize) -> v128 {
            let [a, b, c, d] = x.as_chunks::<4>().0[part];
            self.simd128
                .i32x4_extend_low_u16x8($crate::simd::wasm::vector([a, b, c, d, 0, 0, 0, 0]))
        }

        #[inline(always)]
        fn load_f16s<const N: usize>(self, x: &[u16; N], part: usize) -> $crate::simd::F32<Self> {
            let [a, b, c, d] = x.as_chunks::<4>().0[part];
            let half = $crate::simd::wasm::vector([a, b, c, d, 0, 0, 0, 0]);
            let wide = self.simd128.i32x4_extend_low_i16x8(half);
            let shifted = $crate::simd::wasm::numbers(self.simd128.i32x4_shl(wide, 13));
            $crate::simd::vector::widen_finite_f16(self, shifted)
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
        fn bits(self, x: v128, at: usize, n: usize) -> v128 {
            let low = self.simd128.u32x4_shr(x, at as u32);
            self.simd128.v128_and(low, self.simd128.i32x4_splat((1 << n) - 1))
        }

        #[inline(always)]
        fn signed_byte(self, x: v128, at: usize) -> v128 {
            self.simd128.i32x4_shr(self.simd128.i32x4_shl(x, 24 - 8 * at as u32), 24)
        }

        #[inline(always)]
        fn to_floats(self, x: v128) -> $crate::simd::F32<Self> {
            // SAFETY: four lanes of 32 bits both, and any bits are floats.
            unsafe { std::mem::transmute(self.simd128.f32x4_convert_i32x4(x)) }
        }
    };
}
pub(super) use int8_wasm;

/// Methods of [`RowInt8`](super::RowInt8) that do not depend on the dot product.
macro_rules! row_int8_wasm {
    () => {
        #[inline(always)]
        fn negate(self, x: v128, bits: u32) -> v128 {
            // Byte i gets the byte of `bits` that holds bit i, then keeps that bit alone.
            let spread = self.simd128.u32x4_splat(bits);
            let bytes = self
                .simd128
                .i8x16_shuffle::<0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1>(spread, spread);
            let bits = $crate::simd::wasm::vector([0x8040_2010_0804_0201_u64; 2]);
            let mask = self.simd128.i8x16_eq(self.simd128.v128_and(bytes, bits), bits);
            self.simd128.i8x16_sub(self.simd128.v128_xor(x, mask), mask)
        }
    };
}
pub(super) use row_int8_wasm;
