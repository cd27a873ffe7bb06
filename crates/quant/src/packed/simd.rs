//! What the panel kernel needs from an instruction set.

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

use super::{PANEL_ROWS, Words};
use crate::activation::Unit;

/// Operations on words of [`Simd::LANES`] rows of a panel, four codes of a row each; implemented on the
/// tokens of `stonechat_compute::simd`.
///
/// Methods must be called inside the token's feature context, or they compile to function calls; they are
/// correct either way.
pub(super) trait PanelSimd: Simd {
    /// A word of each of `LANES` rows.
    type Words: Copy;
    /// Sums of products of `LANES` rows, in integers.
    type Sums: Copy;

    /// Rows of activations that pass a panel together, as many as have their sums in registers: 4 or 8.
    const TILE_ROWS: usize;

    /// How many groups of four 7-bit codes [`dot`](Self::dot) adds before the sums must be
    /// [widened](Self::widen); twice as many for each bit less.
    const HEADROOM: usize;

    /// What the bytes that [`dot_bytes`](Self::dot_bytes) takes are larger than the values they stand for:
    /// 128 where the dot product wants unsigned bytes, else 0.
    const BYTE_OFFSET: u8;

    /// Calls `f` in the token's feature context.
    fn vectorize<F: NullaryFnOnce>(self, f: F) -> F::Output;

    /// Loads part `part` of a word, of `16 / LANES`.
    fn load_word(self, word: &Words, part: usize) -> Self::Words;

    /// Loads 16-bit integers.
    fn load_u16(self, x: &[u16; PANEL_ROWS], part: usize) -> Self::Words;

    /// Every byte masked.
    fn mask(self, x: Self::Words, mask: u8) -> Self::Words;

    /// Bitwise or.
    fn or(self, x: Self::Words, y: Self::Words) -> Self::Words;

    /// Every byte shifted right; its high `n` bits may come from a neighbour.
    fn shift_right(self, x: Self::Words, n: usize) -> Self::Words;

    /// Every byte shifted left; its low `n` bits may come from a neighbour.
    fn shift_left(self, x: Self::Words, n: usize) -> Self::Words;

    /// Every byte, below 16, replaced by that entry of `table`.
    fn lookup(self, table: &[u8; 16], x: Self::Words) -> Self::Words;

    /// Bytes that are 128 larger than the values they stand for as [`dot_bytes`](Self::dot_bytes) wants them.
    fn unbias(self, x: Self::Words) -> Self::Words;

    /// Bits `at .. at + n` of every word.
    fn bits(self, x: Self::Words, at: usize, n: usize) -> Self::Words;

    /// Byte `at` of every word, signed.
    fn signed_byte(self, x: Self::Words, at: usize) -> Self::Words;

    /// Small integers as floats.
    fn to_floats(self, x: Self::Words) -> F32<Self>;

    /// Sums with nothing in them, or already `offset`: either this method adds it or [`finish`](Self::finish).
    fn start(self, offset: i32) -> Self::Sums;

    /// Adds the products of four codes of each row, at most 127, with values `4 g ..` of `x`.
    fn dot(self, sums: Self::Sums, codes: Self::Words, x: &Unit, g: usize) -> Self::Sums;

    /// The same with any bytes, which are [`BYTE_OFFSET`](Self::BYTE_OFFSET) too large.
    fn dot_bytes(self, sums: Self::Sums, bytes: Self::Words, x: &Unit, g: usize) -> Self::Sums;

    /// Makes room for [`HEADROOM`](Self::HEADROOM) more.
    fn widen(self, sums: Self::Sums) -> Self::Sums;

    /// The sums and `offset`, which [`start`](Self::start) also got.
    fn finish(self, sums: Self::Sums, offset: i32) -> F32<Self>;

    /// Widens f16 values.
    #[inline(always)]
    fn load_f16s(self, x: &[u16; PANEL_ROWS], part: usize) -> F32<Self> {
        let x = &x[part * Self::LANES..][..Self::LANES];
        // SAFETY: the slice has `LANES` values of 16 bits, as f16 are.
        unsafe { self.load_f16(x.as_ptr().cast::<f16>()) }
    }
}
