//! WebAssembly `simd128`: 128-bit vectors. Products are added in 16 bits, and sums widened before they overflow.
//!
//! A lane has four bytes, the even and the odd ones of which are pairs of 16-bit integers. Their products stay in the lane:
//!
//! ```text
//! lane        | w3 w2 w1 w0 |      | x3 x2 x1 x0 |
//! even        |    w2    w0 |      |    x2    x0 |      16 bits each
//! odd         |    w3    w1 |      |    x3    x1 |
//! narrow +=   | w2*x2 + w3*x3   w0*x0 + w1*x1    |
//! wide   +=   |   sum of the pair in 32 bits     |
//! ```
//!
//! Even and odd bytes of weights serve all rows of activations, those of activations all vectors of weights: what is left
//! for a product are two multiplications and two additions.

use std::arch::wasm32::v128;

use super::int8::{Int8, RowInt8};
use super::token::token;
use super::vector::{F32, Simd};
use super::wasm::{int8_wasm, row_int8_wasm, simd_wasm, vector};

token! {
    /// WebAssembly 128-bit vectors.
    WasmSimd128(pulp::wasm::Simd128), true, "simd128"
}

/// Sums of pairs of products in 16 bits, and the 32-bit sums they were widened to.
#[derive(Clone, Copy, Debug)]
pub struct NarrowSums(v128, v128);

impl Simd for WasmSimd128 {
    simd_wasm!();
}

impl WasmSimd128 {
    /// The signed bytes of each lane as pairs of 16-bit integers: the even ones, and the odd ones.
    #[inline(always)]
    fn byte_pairs(self, x: v128) -> [v128; 2] {
        let even = self.simd128.i16x8_shr(self.simd128.i16x8_shl(x, 8), 8);
        [even, self.simd128.i16x8_shr(x, 8)]
    }
}

impl Int8 for WasmSimd128 {
    int8_wasm!();

    type Sums = NarrowSums;

    const NAME: &'static str = "simd128";
    const GEMM_ROWS: usize = 4;
    const HEADROOM: usize = 1;
    const BYTE_OFFSET: u8 = 0;

    #[inline(always)]
    fn lookup(self, table: &[u8; 16], x: v128) -> v128 {
        self.simd128.i8x16_swizzle(vector(*table), x)
    }

    #[inline(always)]
    fn start(self, _: i32) -> NarrowSums {
        let zero = self.simd128.i32x4_splat(0);
        NarrowSums(zero, zero)
    }

    #[inline(always)]
    fn dot4(self, sums: NarrowSums, w: v128, x: v128) -> NarrowSums {
        let w_even = self.simd128.v128_and(w, self.simd128.u16x8_splat(0xff));
        let w_odd = self.simd128.u16x8_shr(w, 8);
        let [x_even, x_odd] = self.byte_pairs(x);
        let even = self.simd128.i16x8_add(sums.0, self.simd128.i16x8_mul(w_even, x_even));
        NarrowSums(self.simd128.i16x8_add(even, self.simd128.i16x8_mul(w_odd, x_odd)), sums.1)
    }

    #[inline(always)]
    fn dot4_quad(self, sums: NarrowSums, w: v128, x: &[i32; 8], quad: usize) -> NarrowSums {
        self.dot4(sums, w, self.simd128.i32x4_splat(x[quad]))
    }

    #[inline(always)]
    fn dot4_bytes(self, sums: NarrowSums, w: v128, x: &[i32; 8], quad: usize) -> NarrowSums {
        self.dot4_signed(sums, w, self.simd128.i32x4_splat(x[quad]))
    }

    #[inline(always)]
    fn widen(self, sums: NarrowSums) -> NarrowSums {
        // Not a dot product with ones: LLVM 22 crashes where it folds one of undefined sums.
        let wide = self.simd128.i32x4_extadd_pairwise_i16x8(sums.0);
        NarrowSums(self.simd128.i32x4_splat(0), self.simd128.i32x4_add(sums.1, wide))
    }

    #[inline(always)]
    fn finish(self, sums: NarrowSums, offset: i32) -> F32<Self> {
        let wide = self.widen(sums).1;
        self.to_floats(self.simd128.i32x4_add(wide, self.simd128.i32x4_splat(offset)))
    }
}

impl RowInt8 for WasmSimd128 {
    row_int8_wasm!();

    #[inline(always)]
    fn dot4_signed(self, sums: NarrowSums, w: v128, x: v128) -> NarrowSums {
        // |w| <= 128 and |x| <= 127: two products reach 32512 at most.
        let ([w_even, w_odd], [x_even, x_odd]) = (self.byte_pairs(w), self.byte_pairs(x));
        let even = self.simd128.i16x8_add(sums.0, self.simd128.i16x8_mul(w_even, x_even));
        NarrowSums(self.simd128.i16x8_add(even, self.simd128.i16x8_mul(w_odd, x_odd)), sums.1)
    }
}
