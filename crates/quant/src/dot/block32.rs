//! [`Unpack32`]: blocks of 32 values to bytes, scales and mins.

use super::{ActivationRow, DotRow, Unpack32, dot32};
use crate::block::{
    BlockIq4Nl, BlockMxfp4, BlockQ4_0, BlockQ4_1, BlockQ5_0, BlockQ5_1, BlockQ8_0, E2M1_TWICE,
    Half, LEVELS,
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

/// Widens field `$field` of up to eight blocks.
macro_rules! halves {
    ($s:expr, $blocks:expr, $field:ident) => {{
        let mut halves = [Half::default(); 8];
        for (half, block) in halves.iter_mut().zip($blocks) {
            *half = block.$field;
        }
        $s.halves(halves)
    }};
}

/// `$bytes` are the bytes of `$block`; with `$offset` they are unsigned and offset by it.
macro_rules! unpack_offset {
    ($block:ty, |$this:ident, $s:ident| $bytes:expr, offset $offset:literal) => {
        impl Unpack32 for $block {
            const SIGNED: bool = $offset == 0.0;
            const HAS_MIN: bool = $offset != 0.0;

            #[inline(always)]
            fn unpack<S: I8Dot>(&self, $s: S) -> S::Bytes {
                let $this = self;
                $bytes
            }

            #[inline(always)]
            fn scales<S: I8Dot>(s: S, blocks: &[Self]) -> S::Floats {
                halves!(s, blocks, d)
            }

            #[inline(always)]
            fn mins<S: I8Dot>(s: S, _: &[Self], scales: S::Floats) -> S::Floats {
                s.scale_floats(scales, s.splat_floats(-$offset))
            }
        }
    };
}

unpack_offset!(BlockQ4_0, |w, s| s.nibbles(&w.qs), offset 8.0);
unpack_offset!(BlockQ5_0, |w, s| five_bits(s, w.qh, &w.qs), offset 16.0);
unpack_offset!(BlockQ8_0, |w, s| s.load_bytes(bytemuck::cast_ref(&w.qs)), offset 0.0);
unpack_offset!(BlockIq4Nl, |w, s| s.lookup(&LEVELS, s.nibbles(&w.qs)), offset 0.0);

/// `$bytes` are the unsigned bytes of `$block`, which has a min.
macro_rules! unpack_min {
    ($block:ty, |$this:ident, $s:ident| $bytes:expr) => {
        impl Unpack32 for $block {
            const SIGNED: bool = false;
            const HAS_MIN: bool = true;

            #[inline(always)]
            fn unpack<S: I8Dot>(&self, $s: S) -> S::Bytes {
                let $this = self;
                $bytes
            }

            #[inline(always)]
            fn scales<S: I8Dot>(s: S, blocks: &[Self]) -> S::Floats {
                halves!(s, blocks, d)
            }

            #[inline(always)]
            fn mins<S: I8Dot>(s: S, blocks: &[Self], _: S::Floats) -> S::Floats {
                halves!(s, blocks, m)
            }
        }
    };
}

unpack_min!(BlockQ4_1, |w, s| s.nibbles(&w.qs));
unpack_min!(BlockQ5_1, |w, s| five_bits(s, w.qh, &w.qs));

impl Unpack32 for BlockMxfp4 {
    const SIGNED: bool = true;
    const HAS_MIN: bool = false;

    #[inline(always)]
    fn unpack<S: I8Dot>(&self, s: S) -> S::Bytes {
        s.lookup(&E2M1_TWICE, s.nibbles(&self.qs))
    }

    #[inline(always)]
    fn scales<S: I8Dot>(s: S, blocks: &[Self]) -> S::Floats {
        let mut scales = [0.0; 8];
        for (scale, block) in scales.iter_mut().zip(blocks) {
            *scale = block.scale();
        }
        s.load_floats(&scales)
    }

    #[inline(always)]
    fn mins<S: I8Dot>(s: S, _: &[Self], _: S::Floats) -> S::Floats {
        s.splat_floats(0.0)
    }
}

#[inline(always)]
fn five_bits<S: I8Dot>(s: S, qh: [u8; 4], qs: &[u8; 16]) -> S::Bytes {
    s.or(s.nibbles(qs), s.spread_bits(u32::from_le_bytes(qh)))
}
