//! [`Int8`]: vectors of bytes and of 32-bit sums, below the kernels of quantized weights.

use bytemuck::Pod;
use half::f16;

use super::vector::{F32, Simd};

/// Integer operations on [`Simd::LANES`] lanes of 32 bits: an integer, or four bytes.
///
/// [`dot4`](Self::dot4) is what instruction sets differ in:
///
/// | | lanes | products | bytes of [`dot4_bytes`](Self::dot4_bytes) | sums |
/// |---|---|---|---|---|
/// | scalar | 4 | integers | signed | 32 bits |
/// | SSE4.2, AVX2 | 4, 8 | `pmaddubsw` | signed | 16 bits, widened |
/// | AVX-VNNI, AVX-512 VNNI | 8, 16 | `dpbusd` | offset by 128 | 32 bits |
/// | NEON | 4 | widening multiply | signed | 16 bits, widened |
/// | NEON dotprod | 4 | `sdot` | signed | 32 bits |
/// | wasm | 4 | 16-bit multiply | signed | 16 bits, widened |
/// | wasm relaxed | 4 | `relaxed_dot` | offset by 127, -128 counts as -127 | 32 bits |
///
/// Methods must be called inside the token's feature context, or they compile to function calls; they are correct either
/// way.
pub trait Int8: Simd {
    /// 32 bits of each lane.
    type U32s: Pod;
    /// Sums of products of each lane.
    type Sums: Copy;
    /// Token with the same instructions on at most 32 bytes.
    type Narrow: RowInt8;

    /// The tier whose kernels these are.
    const NAME: &'static str;

    /// Rows of activations that GEMV multiplies together, limited by the registers for their sums: 4 or 8.
    const GEMV_ROWS: usize;

    /// Rows of activations of a tile of GEMM, 4 or 6; 0 if GEMV is used for any number of rows.
    const GEMM_ROWS: usize;

    /// Whether a tile of GEMM multiplies signed bytes with [`dot4_lane`](Self::dot4_lane): quants without their offset.
    const HAS_LANE_DOT: bool = false;

    /// Calls of [`dot4`](Self::dot4) with bytes below 128 before sums must be [widened](Self::widen); twice as many for
    /// each bit less.
    const HEADROOM: usize;

    /// [`HEADROOM`](Self::HEADROOM) of a tile of GEMM.
    const TILE_HEADROOM: usize = Self::HEADROOM;

    /// Offset of the bytes that [`dot4_bytes`](Self::dot4_bytes) takes: 128 where the instruction wants unsigned bytes, 127
    /// where halves of bytes must be below 128, else 0.
    const BYTE_OFFSET: u8;

    /// Whether [`dot4`](Self::dot4) takes any unsigned bytes and adds products in 32 bits.
    const HAS_VNNI: bool = Self::BYTE_OFFSET == 128;

    /// The token of narrow vectors.
    fn narrow(self) -> Self::Narrow;

    /// Loads vector `part` of `x`.
    fn load_u32s<const N: usize>(self, x: &[u32; N], part: usize) -> Self::U32s;

    /// Loads vector `part` of 16-bit integers.
    fn load_u16s<const N: usize>(self, x: &[u16; N], part: usize) -> Self::U32s;

    /// Masks every byte.
    fn mask(self, x: Self::U32s, mask: u8) -> Self::U32s;

    /// Bitwise or.
    fn or(self, x: Self::U32s, y: Self::U32s) -> Self::U32s;

    /// Adds `y` to every byte, wrapping.
    fn add_to_bytes(self, x: Self::U32s, y: u8) -> Self::U32s;

    /// Changes the offset of bytes from 128 to [`BYTE_OFFSET`](Self::BYTE_OFFSET).
    #[inline(always)]
    fn offset_bytes(self, x: Self::U32s) -> Self::U32s {
        self.add_to_bytes(x, Self::BYTE_OFFSET.wrapping_add(128))
    }

    /// Shifts every byte right; its high `n` bits may come from a neighbour.
    fn shift_right(self, x: Self::U32s, n: usize) -> Self::U32s;

    /// Shifts every byte left; its low `n` bits may come from a neighbour.
    fn shift_left(self, x: Self::U32s, n: usize) -> Self::U32s;

    /// `table[byte]` for every byte, below 16.
    fn lookup(self, table: &[u8; 16], x: Self::U32s) -> Self::U32s;

    /// Bits `at .. at + n` of every lane.
    fn bits(self, x: Self::U32s, at: usize, n: usize) -> Self::U32s;

    /// Byte `at` of every lane, sign-extended.
    fn signed_byte(self, x: Self::U32s, at: usize) -> Self::U32s;

    /// Converts small integers.
    fn to_floats(self, x: Self::U32s) -> F32<Self>;

    /// Sums of `offset` or 0: either this method adds it or [`finish`](Self::finish).
    fn start(self, offset: i32) -> Self::Sums;

    /// Adds the four products of each lane of bytes `w <= 127` with signed bytes `x >= -127`.
    fn dot4(self, sums: Self::Sums, w: Self::U32s, x: Self::U32s) -> Self::Sums;

    /// [`dot4`](Self::dot4) with `x[quad]` in all lanes.
    fn dot4_quad(self, sums: Self::Sums, w: Self::U32s, x: &[i32; 8], quad: usize) -> Self::Sums;

    /// [`dot4_quad`](Self::dot4_quad) among others that add to the same sums, in a block of code without branches.
    #[inline(always)]
    fn dot4_in_chain(
        self,
        sums: Self::Sums,
        w: Self::U32s,
        x: &[i32; 8],
        quad: usize,
    ) -> Self::Sums {
        self.dot4_quad(sums, w, x, quad)
    }

    /// [`dot4_quad`](Self::dot4_quad) with any bytes `w`, offset by [`BYTE_OFFSET`](Self::BYTE_OFFSET).
    #[inline(always)]
    fn dot4_bytes(self, sums: Self::Sums, w: Self::U32s, x: &[i32; 8], quad: usize) -> Self::Sums {
        self.dot4_quad(sums, w, x, quad)
    }

    /// Adds narrow sums to wide ones, for [`HEADROOM`](Self::HEADROOM) more calls.
    fn widen(self, sums: Self::Sums) -> Self::Sums;

    /// Bytes in the order that [`dot4_lane`](Self::dot4_lane) takes.
    #[inline(always)]
    fn tile_order(self, w: Self::U32s) -> Self::U32s {
        w
    }

    /// Adds the four products of each lane of signed bytes `w` with quad `LANE` of four, the first or the last of `x`.
    #[inline(always)]
    fn dot4_lane<const LANE: usize>(
        self,
        sums: Self::Sums,
        w: Self::U32s,
        x: &[i32; 8],
        four: usize,
    ) -> Self::Sums {
        self.dot4_bytes(sums, w, x, 4 * four + LANE)
    }

    /// [`widen`](Self::widen) of sums of [`dot4_lane`](Self::dot4_lane), after
    /// [`TILE_HEADROOM`](Self::TILE_HEADROOM) calls.
    #[inline(always)]
    fn widen_lanes(self, sums: Self::Sums) -> Self::Sums {
        self.widen(sums)
    }

    /// The sums of [`dot4_lane`](Self::dot4_lane), [started](Self::start) without an offset, as floats.
    #[inline(always)]
    fn finish_lanes(self, sums: Self::Sums) -> F32<Self> {
        self.finish(sums, 0)
    }

    /// The sums and `offset`, which [`start`](Self::start) also got, as floats.
    fn finish(self, sums: Self::Sums, offset: i32) -> F32<Self>;

    /// Loads vector `part` of scales in f16. Tiers without a conversion may read infinities and NaN, which no scale of a model
    /// is, as finite values of 65536 and more.
    #[inline(always)]
    fn load_f16s<const N: usize>(self, x: &[u16; N], part: usize) -> F32<Self> {
        let x = &x[part * Self::LANES..][..Self::LANES];
        // SAFETY: the slice has `LANES` values of 16 bits, as f16 are.
        unsafe { self.load_f16(x.as_ptr().cast::<f16>()) }
    }
}

/// Operations of row dots, whose 32 bytes are eight lanes, on tokens with at most as many.
pub trait RowInt8: Int8 {
    /// Negates byte `i` where bit `i` is set.
    #[inline(always)]
    fn negate(self, mut x: Self::U32s, bits: u32) -> Self::U32s {
        for (i, byte) in bytemuck::bytes_of_mut(&mut x).iter_mut().enumerate() {
            let mask = ((bits >> i & 1) as u8).wrapping_neg();
            *byte = (*byte ^ mask).wrapping_sub(mask);
        }
        x
    }

    /// [`dot4`](Int8::dot4) with signed bytes `w`.
    #[inline(always)]
    fn dot4_signed(self, sums: Self::Sums, w: Self::U32s, x: Self::U32s) -> Self::Sums {
        self.dot4(sums, w, x)
    }

    /// Vector `part` of eight lanes of which four are the first value, the others the second.
    #[inline(always)]
    fn splat_halves(self, [low, high]: [f32; 2], part: usize) -> F32<Self> {
        self.splat(if part * Self::LANES < 4 { low } else { high })
    }
}
