//! WebAssembly `relaxed-simd`: a dot product of bytes and a multiply-add in one instruction each.
//!
//! `i32x4.relaxed_dot_i8x16_i7x16_add(a, b, c)` gives the same result on every machine where bytes of `b` are below 128,
//! which machines read as signed or as unsigned, and where no pair of products leaves 16 bits: 2 * 127 * 127 < 2^15.
//!
//! | weights | `a` | `b` |
//! |---|---|---|
//! | quants of up to 7 bits | `x` | `w` |
//! | bytes in panels, offset by 127 | `x` | `w / 2`, then the rest of `w` |
//! | signed bytes | `x` with the sign of `w` | <code>&#124;w&#124;</code>, 127 for -128 |
//!
//! Quantizers write no -128, since their scale is that of 127: it counts as -127, on every machine.

use std::arch::wasm32::{
    f32x4_relaxed_madd, i8x16_relaxed_swizzle, i32x4_relaxed_dot_i8x16_i7x16_add, v128,
};

use super::int8::{Int8, RowInt8};
use super::token::token;
use super::vector::{F32, Simd};
use super::wasm::{int8_wasm, numbers, row_int8_wasm, simd_wasm, vector};

token! {
    /// WebAssembly 128-bit vectors with relaxed instructions.
    WasmRelaxed(pulp::wasm::Simd128), true, "simd128", "relaxed-simd"
}

impl Simd for WasmRelaxed {
    simd_wasm!();

    #[inline(always)]
    fn mul_add(self, a: F32<Self>, b: F32<Self>, c: F32<Self>) -> F32<Self> {
        numbers(f32x4_relaxed_madd(vector(a), vector(b), vector(c)))
    }
}

impl Int8 for WasmRelaxed {
    int8_wasm!();

    type Sums = v128;

    const NAME: &'static str = "relaxed";
    const GEMM_ROWS: usize = 4;
    const HEADROOM: usize = 1 << 16;
    const BYTE_OFFSET: u8 = 127;

    #[inline(always)]
    fn lookup(self, table: &[u8; 16], x: v128) -> v128 {
        i8x16_relaxed_swizzle(vector(*table), x)
    }

    #[inline(always)]
    fn offset_bytes(self, x: v128) -> v128 {
        self.simd128.u8x16_sub_sat(x, self.simd128.u8x16_splat(1))
    }

    #[inline(always)]
    fn start(self, offset: i32) -> v128 {
        self.simd128.i32x4_splat(offset)
    }

    #[inline(always)]
    fn dot4(self, sums: v128, w: v128, x: v128) -> v128 {
        i32x4_relaxed_dot_i8x16_i7x16_add(x, w, sums)
    }

    #[inline(always)]
    fn dot4_quad(self, sums: v128, w: v128, x: &[i32; 8], quad: usize) -> v128 {
        self.dot4(sums, w, self.simd128.i32x4_splat(x[quad]))
    }

    #[inline(always)]
    fn dot4_in_chain(self, sums: v128, w: v128, x: &[i32; 8], quad: usize) -> v128 {
        // The compiler would nest the dot products of a chain, whose operands would all wait in registers for the innermost one.
        let zero = self.simd128.i32x4_splat(0);
        self.simd128.i32x4_add(sums, self.dot4_quad(zero, w, x, quad))
    }

    #[inline(always)]
    fn dot4_bytes(self, sums: v128, w: v128, x: &[i32; 8], quad: usize) -> v128 {
        let half = self.mask(self.simd128.u16x8_shr(w, 1), 127);
        let rest = self.simd128.i8x16_sub(w, half);
        let zero = self.simd128.i32x4_splat(0);
        let halves = self.dot4_quad(zero, half, x, quad);
        self.simd128.i32x4_add(sums, self.dot4_quad(halves, rest, x, quad))
    }

    #[inline(always)]
    fn widen(self, sums: v128) -> v128 {
        sums
    }

    #[inline(always)]
    fn finish(self, sums: v128, _: i32) -> F32<Self> {
        self.to_floats(sums)
    }
}

impl RowInt8 for WasmRelaxed {
    row_int8_wasm!();

    #[inline(always)]
    fn dot4_signed(self, sums: v128, w: v128, x: v128) -> v128 {
        let sign = self.simd128.i8x16_lt(w, self.simd128.i8x16_splat(0));
        let magnitude =
            self.simd128.u8x16_min(self.simd128.i8x16_abs(w), self.simd128.u8x16_splat(127));
        let x = self.simd128.i8x16_sub(self.simd128.v128_xor(x, sign), sign);
        self.dot4(sums, magnitude, x)
    }
}
