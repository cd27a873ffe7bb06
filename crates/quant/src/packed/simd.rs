//! Integer vectors of the panel kernels: one 32-bit lane per weight row.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "wasm32")]
mod wasm;

use half::f16;
use stonechat_compute::simd::{F32, NullaryFnOnce, Simd};

use super::{PANEL_ROWS, U32x16};
use crate::activation::QBlock;

/// Operations on [`Simd::LANES`] rows of a panel, a quad (four quants) of each row; implemented on the tokens of
/// `stonechat_compute::simd`.
///
/// Methods must be called inside the token's feature context, or they compile to function calls; they are
/// correct either way.
///
/// | | AVX2 | AVX-VNNI | AVX-512 VNNI | NEON, wasm | NEON dotprod |
/// |---|---|---|---|---|---|
/// | lanes | 8 | 8 | 16 | 4 | 4 |
/// | products | `pmaddubsw` | `dpbusd` | `dpbusd` | widening multiply | `sdot` |
/// | weight bytes | signed | offset by 128 | offset by 128 | signed | signed |
/// | sums | 16 bits, widened | 32 bits | 32 bits | 16 bits, widened | 32 bits |
pub(super) trait PanelSimd: Simd {
    /// 32 bits of each of `LANES` rows.
    type U32s: Copy;
    /// Integer sums of products of `LANES` rows.
    type Sums: Copy;

    /// Rows of activations that GEMV multiplies together, as many as have their sums in registers: 4 or 8.
    const MR: usize;

    /// Quads of 7-bit quants that [`dot`](Self::dot) adds before sums must be [widened](Self::widen); twice as many for
    /// each bit less.
    const HEADROOM: usize;

    /// Offset of the bytes that [`dot_bytes`](Self::dot_bytes) takes: 128 where the instruction wants unsigned bytes,
    /// else 0.
    const BYTE_OFFSET: u8;

    /// Calls `f` in the token's feature context.
    fn vectorize<F: NullaryFnOnce>(self, f: F) -> F::Output;

    /// Loads part `part` of a vector, of `16 / LANES`.
    fn load_u32s(self, x: &U32x16, part: usize) -> Self::U32s;

    /// Loads 16-bit integers.
    fn load_u16(self, x: &[u16; PANEL_ROWS], part: usize) -> Self::U32s;

    /// Masks every byte.
    fn mask(self, x: Self::U32s, mask: u8) -> Self::U32s;

    /// Bitwise or.
    fn or(self, x: Self::U32s, y: Self::U32s) -> Self::U32s;

    /// Shifts every byte right; its high `n` bits may come from a neighbour.
    fn shift_right(self, x: Self::U32s, n: usize) -> Self::U32s;

    /// Shifts every byte left; its low `n` bits may come from a neighbour.
    fn shift_left(self, x: Self::U32s, n: usize) -> Self::U32s;

    /// `table[byte]` for every byte, below 16.
    fn lookup(self, table: &[u8; 16], x: Self::U32s) -> Self::U32s;

    /// Converts bytes offset by 128 to bytes offset by [`BYTE_OFFSET`](Self::BYTE_OFFSET).
    fn unbias(self, x: Self::U32s) -> Self::U32s;

    /// Bits `at .. at + n` of every lane.
    fn bits(self, x: Self::U32s, at: usize, n: usize) -> Self::U32s;

    /// Byte `at` of every lane, sign-extended.
    fn signed_byte(self, x: Self::U32s, at: usize) -> Self::U32s;

    /// Converts small integers.
    fn to_floats(self, x: Self::U32s) -> F32<Self>;

    /// Sums of `offset` or 0: either this method adds it or [`finish`](Self::finish).
    fn start(self, offset: i32) -> Self::Sums;

    /// Adds `dot4(w, x.quads()[quad])` for quants `w <= 127`.
    fn dot(self, sums: Self::Sums, w: Self::U32s, x: &QBlock, quad: usize) -> Self::Sums;

    /// Adds `dot4(w, x.quads()[quad])` for any bytes `w`, offset by [`BYTE_OFFSET`](Self::BYTE_OFFSET).
    fn dot_bytes(self, sums: Self::Sums, w: Self::U32s, x: &QBlock, quad: usize) -> Self::Sums;

    /// Adds narrow sums to wide ones, for [`HEADROOM`](Self::HEADROOM) more quads.
    fn widen(self, sums: Self::Sums) -> Self::Sums;

    /// The sums and `offset`, which [`start`](Self::start) also got, as floats.
    fn finish(self, sums: Self::Sums, offset: i32) -> F32<Self>;

    /// Widens f16 values.
    #[inline(always)]
    fn load_f16s(self, x: &[u16; PANEL_ROWS], part: usize) -> F32<Self> {
        let x = &x[part * Self::LANES..][..Self::LANES];
        // SAFETY: the slice has `LANES` values of 16 bits, as f16 are.
        unsafe { self.load_f16(x.as_ptr().cast::<f16>()) }
    }
}
