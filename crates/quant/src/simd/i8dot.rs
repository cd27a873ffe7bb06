//! [`I8Dot`]: the integer operations of the fused dot products.

use stonechat_compute::simd::Simd;

use crate::block::Half;

/// Operations on 32 weights, implemented on the tokens of `stonechat_compute::simd`.
///
/// On every instruction set a dot product of 32 values ends in eight partial sums, the first four
/// over products 0..16 and the others over products 16..32, each exact. All tiers with fused
/// multiply-add therefore return the same bits.
///
/// Methods must be called inside the token's feature context, or they compile to function calls;
/// they are correct either way.
pub trait I8Dot: Simd {
    /// 32 bytes.
    type Bytes: Copy;
    /// Eight `i32`.
    type Ints: Copy;
    /// Eight `f32`.
    type Floats: Copy;

    /// The name of the dot product's instructions, for logs and benches.
    const DOT_NAME: &'static str;

    /// Widens an f16.
    fn half(self, x: Half) -> f32;

    /// Widens eight f16.
    fn halves(self, x: [Half; 8]) -> Self::Floats;

    /// Widens `x` to all lanes; unlike [`half`](Self::half) without a dependency on another register.
    fn splat_half(self, x: Half) -> Self::Floats;

    /// Converts eight unsigned bytes.
    fn widen_unsigned(self, x: [u8; 8]) -> Self::Floats;

    /// Converts eight signed bytes.
    fn widen_signed(self, x: [u8; 8]) -> Self::Floats;

    /// Loads eight values, each into two neighbouring lanes.
    fn load_twice(self, x: &[f32; 8]) -> [Self::Floats; 2];

    /// Loads 32 bytes.
    fn load_bytes(self, x: &[u8; 32]) -> Self::Bytes;

    /// The low nibbles of 16 bytes, then their high nibbles.
    fn nibbles(self, x: &[u8; 16]) -> Self::Bytes;

    /// Byte `i` is 16 where bit `i` is set, else 0.
    fn spread_bits(self, bits: u32) -> Self::Bytes;

    /// Negates byte `i` where bit `i` is set.
    fn negate(self, x: Self::Bytes, bits: u32) -> Self::Bytes;

    /// `table[byte]` for every byte, below 16.
    fn lookup(self, table: &[i8; 16], x: Self::Bytes) -> Self::Bytes;

    /// Masks every byte.
    fn mask(self, x: Self::Bytes, mask: u8) -> Self::Bytes;

    /// Bitwise or.
    fn or(self, x: Self::Bytes, y: Self::Bytes) -> Self::Bytes;

    /// Shifts 16-bit lanes right by `N`; the high `N` bits of each byte are unspecified (zero, or the next byte's).
    fn shift_right<const N: i32>(self, x: Self::Bytes) -> Self::Bytes;

    /// Every byte shifted left; its low bits are zero, and its high `N` bits must be zero.
    fn shift_left<const N: i32>(self, x: Self::Bytes) -> Self::Bytes;

    /// Products of unsigned weights `w <= 127` with signed activations `a`.
    fn dot_unsigned(self, w: Self::Bytes, a: Self::Bytes) -> Self::Ints;

    /// Products of signed weights with signed activations `a >= -127`.
    fn dot_signed(self, w: Self::Bytes, a: Self::Bytes) -> Self::Ints;

    /// Converts; sums of 32 products are exact in f32.
    fn to_floats(self, x: Self::Ints) -> Self::Floats;

    /// Loads eight values.
    fn load_floats(self, x: &[f32; 8]) -> Self::Floats;

    /// The lanes.
    fn to_array(self, x: Self::Floats) -> [f32; 8];

    /// `x` in all lanes.
    fn splat_floats(self, x: f32) -> Self::Floats;

    /// `low` in lanes 0..4, `high` in lanes 4..8.
    fn pair(self, low: f32, high: f32) -> Self::Floats;

    /// `a * b`.
    fn scale_floats(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;

    /// `a * b + c`, fused where the CPU fuses.
    fn fused(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;

    /// The sum of the lanes, in one order on every tier.
    fn sum(self, x: Self::Floats) -> f32;
}
