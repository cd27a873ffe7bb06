//! How blocks of 32 unpack.

use super::{ActivationRow, DotRow, Unpack32, dot32};
use crate::block::{
    BlockIq4Nl, BlockMxfp4, BlockQ4_0, BlockQ4_1, BlockQ5_0, BlockQ5_1, BlockQ8_0, E2M1_TWICE,
    LEVELS,
};
use crate::simd::I8Dot;

macro_rules! dot_row {
    ($($block:ty),*) => {$(
        impl DotRow for $block {
            #[inline(always)]
            fn dot<S: I8Dot, const M: usize>(
                s: S,
                w: &[Self],
                x: &[ActivationRow<'_>; M],
            ) -> [f32; M] {
                dot32(s, w, x)
            }
        }
    )*};
}

dot_row!(BlockQ4_0, BlockQ4_1, BlockQ5_0, BlockQ5_1, BlockQ8_0, BlockIq4Nl, BlockMxfp4);

impl Unpack32 for BlockQ4_0 {
    const SIGNED: bool = false;
    const HAS_MIN: bool = true;

    #[inline(always)]
    fn unpack<S: I8Dot>(&self, s: S) -> (S::Bytes, f32, f32) {
        let scale = s.half(self.d);
        (s.nibbles(&self.qs), scale, -8.0 * scale)
    }
}

impl Unpack32 for BlockQ4_1 {
    const SIGNED: bool = false;
    const HAS_MIN: bool = true;

    #[inline(always)]
    fn unpack<S: I8Dot>(&self, s: S) -> (S::Bytes, f32, f32) {
        (s.nibbles(&self.qs), s.half(self.d), s.half(self.m))
    }
}

impl Unpack32 for BlockQ5_0 {
    const SIGNED: bool = false;
    const HAS_MIN: bool = true;

    #[inline(always)]
    fn unpack<S: I8Dot>(&self, s: S) -> (S::Bytes, f32, f32) {
        let scale = s.half(self.d);
        (five_bits(s, self.qh, &self.qs), scale, -16.0 * scale)
    }
}

impl Unpack32 for BlockQ5_1 {
    const SIGNED: bool = false;
    const HAS_MIN: bool = true;

    #[inline(always)]
    fn unpack<S: I8Dot>(&self, s: S) -> (S::Bytes, f32, f32) {
        (five_bits(s, self.qh, &self.qs), s.half(self.d), s.half(self.m))
    }
}

impl Unpack32 for BlockQ8_0 {
    const SIGNED: bool = true;
    const HAS_MIN: bool = false;

    #[inline(always)]
    fn unpack<S: I8Dot>(&self, s: S) -> (S::Bytes, f32, f32) {
        (s.load_bytes(bytemuck::cast_ref(&self.qs)), s.half(self.d), 0.0)
    }
}

impl Unpack32 for BlockIq4Nl {
    const SIGNED: bool = true;
    const HAS_MIN: bool = false;

    #[inline(always)]
    fn unpack<S: I8Dot>(&self, s: S) -> (S::Bytes, f32, f32) {
        (s.lookup(&LEVELS, s.nibbles(&self.qs)), s.half(self.d), 0.0)
    }
}

impl Unpack32 for BlockMxfp4 {
    const SIGNED: bool = true;
    const HAS_MIN: bool = false;

    #[inline(always)]
    fn unpack<S: I8Dot>(&self, s: S) -> (S::Bytes, f32, f32) {
        (s.lookup(&E2M1_TWICE, s.nibbles(&self.qs)), self.scale(), 0.0)
    }
}

#[inline(always)]
fn five_bits<S: I8Dot>(s: S, qh: [u8; 4], qs: &[u8; 16]) -> S::Bytes {
    s.or(s.nibbles(qs), s.spread_bits(u32::from_le_bytes(qh)))
}
