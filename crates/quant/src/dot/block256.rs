//! [`Unpack256`]: blocks of 256 values to bytes, scales and mins.

use super::{ActivationRow, DotRow, ScalesMins, Unpack256, dot256};
use crate::block::{
    BlockIq1M, BlockIq1S, BlockIq2S, BlockIq2Xs, BlockIq2Xxs, BlockIq3S, BlockIq3Xxs, BlockIq4Xs,
    BlockQ2K, BlockQ3K, BlockQ4K, BlockQ5K, BlockQ6K, BlockTq1_0, BlockTq2_0, GridBlock, Half,
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
                dot256(s, w, x)
            }
        }
    )*};
}

dot_row!(BlockQ2K, BlockQ3K, BlockQ4K, BlockQ5K, BlockQ6K, BlockTq1_0, BlockTq2_0);
dot_row!(BlockIq1S, BlockIq1M, BlockIq2Xxs, BlockIq2Xs, BlockIq2S, BlockIq3Xxs, BlockIq3S);
dot_row!(BlockIq4Xs);

impl Unpack256 for BlockQ2K {
    const GROUPS_OF_16: bool = true;
    const SIGNED: bool = false;

    #[inline(always)]
    fn unpack<S: I8Dot>(&self, s: S) -> [S::Bytes; 8] {
        two_bits(s, &self.qs)
    }

    #[inline(always)]
    fn scales_mins<S: I8Dot>(&self, s: S) -> ScalesMins<S> {
        let (d, minus_dmin) = (s.splat_half(self.d), s.splat_half(self.dmin.negated()));
        let (mut scales, mut mins) = ([d; 2], [minus_dmin; 2]);
        let packed = bytemuck::cast_ref::<_, [[u8; 8]; 2]>(&self.scales);
        for h in 0..2 {
            let both = u64::from_le_bytes(packed[h]);
            let nibbles = |v: u64| (v & 0x0f0f_0f0f_0f0f_0f0f).to_le_bytes();
            scales[h] = s.scale_floats(d, s.widen_unsigned(nibbles(both)));
            mins[h] = s.scale_floats(minus_dmin, s.widen_unsigned(nibbles(both >> 4)));
        }
        [scales, mins]
    }
}

impl Unpack256 for BlockQ3K {
    const GROUPS_OF_16: bool = true;
    const SIGNED: bool = false;

    #[inline(always)]
    fn unpack<S: I8Dot>(&self, s: S) -> [S::Bytes; 8] {
        let mut q = two_bits(s, &self.qs);
        let high = one_bit(s, &self.hmask);
        for u in 0..8 {
            q[u] = s.or(q[u], s.shift_left::<2>(high[u]));
        }
        q
    }

    #[inline(always)]
    fn scales_mins<S: I8Dot>(&self, s: S) -> ScalesMins<S> {
        signed_groups(s, self.d, -4.0, bytemuck::cast(self.group_scales()))
    }
}

impl Unpack256 for BlockQ4K {
    const GROUPS_OF_16: bool = false;
    const SIGNED: bool = false;

    #[inline(always)]
    fn unpack<S: I8Dot>(&self, s: S) -> [S::Bytes; 8] {
        four_bits(s, &self.qs)
    }

    #[inline(always)]
    fn scales_mins<S: I8Dot>(&self, s: S) -> ScalesMins<S> {
        groups_of_32(s, self.d, self.dmin, self.group_scales())
    }
}

impl Unpack256 for BlockQ5K {
    const GROUPS_OF_16: bool = false;
    const SIGNED: bool = false;

    #[inline(always)]
    fn unpack<S: I8Dot>(&self, s: S) -> [S::Bytes; 8] {
        let mut q = four_bits(s, &self.qs);
        let high = one_bit(s, &self.qh);
        for u in 0..8 {
            q[u] = s.or(q[u], s.shift_left::<4>(high[u]));
        }
        q
    }

    #[inline(always)]
    fn scales_mins<S: I8Dot>(&self, s: S) -> ScalesMins<S> {
        groups_of_32(s, self.d, self.dmin, self.group_scales())
    }
}

impl Unpack256 for BlockQ6K {
    const GROUPS_OF_16: bool = true;
    const SIGNED: bool = false;

    #[inline(always)]
    fn unpack<S: I8Dot>(&self, s: S) -> [S::Bytes; 8] {
        let [a, b, c, d]: [[u8; 32]; 4] = bytemuck::cast(self.ql);
        let [a, b] = [split_nibbles(s, &a), split_nibbles(s, &b)];
        let [c, d] = [split_nibbles(s, &c), split_nibbles(s, &d)];
        let mut q = [a[0], b[0], a[1], b[1], c[0], d[0], c[1], d[1]];
        let high = two_bits(s, &self.qh);
        for u in 0..8 {
            q[u] = s.or(q[u], s.shift_left::<4>(high[u]));
        }
        q
    }

    #[inline(always)]
    fn scales_mins<S: I8Dot>(&self, s: S) -> ScalesMins<S> {
        signed_groups(s, self.d, -32.0, bytemuck::cast(self.scales))
    }
}

impl Unpack256 for BlockIq4Xs {
    const GROUPS_OF_16: bool = false;
    const SIGNED: bool = true;

    #[inline(always)]
    fn unpack<S: I8Dot>(&self, s: S) -> [S::Bytes; 8] {
        let mut q = [s.nibbles(&self.qs[0]); 8];
        for u in 0..8 {
            q[u] = s.lookup(&LEVELS, s.nibbles(&self.qs[u]));
        }
        q
    }

    #[inline(always)]
    fn scales_mins<S: I8Dot>(&self, s: S) -> ScalesMins<S> {
        let scales = self.group_scales(s.half(self.d));
        [[s.load_floats(&scales); 2]; 2]
    }
}

impl Unpack256 for BlockTq1_0 {
    const GROUPS_OF_16: bool = false;
    const SIGNED: bool = false;

    #[inline(always)]
    fn unpack<S: I8Dot>(&self, s: S) -> [S::Bytes; 8] {
        load_quants(s, &self.digits())
    }

    #[inline(always)]
    fn scales_mins<S: I8Dot>(&self, s: S) -> ScalesMins<S> {
        [[s.splat_half(self.d); 2], [s.splat_half(self.d.negated()); 2]]
    }
}

impl Unpack256 for BlockTq2_0 {
    const GROUPS_OF_16: bool = false;
    const SIGNED: bool = false;

    #[inline(always)]
    fn unpack<S: I8Dot>(&self, s: S) -> [S::Bytes; 8] {
        two_bits(s, &self.qs)
    }

    #[inline(always)]
    fn scales_mins<S: I8Dot>(&self, s: S) -> ScalesMins<S> {
        [[s.splat_half(self.d); 2], [s.splat_half(self.d.negated()); 2]]
    }
}

impl Unpack256 for BlockIq1S {
    const GROUPS_OF_16: bool = false;
    const SIGNED: bool = false;

    #[inline(always)]
    fn unpack<S: I8Dot>(&self, s: S) -> [S::Bytes; 8] {
        load_quants(s, &std::array::from_fn(|u| self.quants32(u)))
    }

    #[inline(always)]
    fn scales_mins<S: I8Dot>(&self, s: S) -> ScalesMins<S> {
        eighths(s, [self.group_scales(s.half(self.d)); 2])
    }
}

impl Unpack256 for BlockIq1M {
    const GROUPS_OF_16: bool = true;
    const SIGNED: bool = false;

    #[inline(always)]
    fn unpack<S: I8Dot>(&self, s: S) -> [S::Bytes; 8] {
        load_quants(s, &std::array::from_fn(|u| self.quants32(u)))
    }

    #[inline(always)]
    fn scales_mins<S: I8Dot>(&self, s: S) -> ScalesMins<S> {
        eighths(s, bytemuck::cast(self.group_scales(s.half(self.d()))))
    }
}

macro_rules! unpack_grid {
    ($($block:ty),*) => {$(
        impl Unpack256 for $block {
            const GROUPS_OF_16: bool = <Self as GridBlock>::GROUPS_OF_16;
            const SIGNED: bool = true;

            #[inline(always)]
            fn unpack<S: I8Dot>(&self, s: S) -> [S::Bytes; 8] {
                grid_quants(s, self)
            }

            #[inline(always)]
            fn scales_mins<S: I8Dot>(&self, s: S) -> ScalesMins<S> {
                let scales = self.group_scales(s.half(GridBlock::d(self)));
                let [low, high]: [[f32; 8]; 2] = bytemuck::cast(scales);
                [[s.load_floats(&low), s.load_floats(&high)]; 2]
            }
        }
    )*};
}

unpack_grid!(BlockIq2Xxs, BlockIq2Xs, BlockIq2S, BlockIq3Xxs, BlockIq3S);

#[inline(always)]
fn grid_quants<B: GridBlock, S: I8Dot>(s: S, block: &B) -> [S::Bytes; 8] {
    let mut q = [s.load_bytes(&[0; 32]); 8];
    for u in 0..8 {
        let (magnitudes, signs) = block.quants32(u);
        q[u] = s.negate(s.load_bytes(&magnitudes), signs);
    }
    q
}

#[inline(always)]
fn load_quants<S: I8Dot>(s: S, groups: &[[u8; 32]; 8]) -> [S::Bytes; 8] {
    let mut q = [s.load_bytes(&groups[0]); 8];
    for u in 1..8 {
        q[u] = s.load_bytes(&groups[u]);
    }
    q
}

/// Scales and mins of `scale * (q - 9) / 8`.
#[inline(always)]
fn eighths<S: I8Dot>(s: S, scales: [[f32; 8]; 2]) -> ScalesMins<S> {
    let mut scales_mins = [[s.splat_floats(0.0); 2]; 2];
    for h in 0..2 {
        let scale = s.load_floats(&scales[h]);
        scales_mins[0][h] = s.scale_floats(scale, s.splat_floats(0.125));
        scales_mins[1][h] = s.scale_floats(scale, s.splat_floats(-9.0 / 8.0));
    }
    scales_mins
}

/// Low nibbles, high nibbles.
#[inline(always)]
fn split_nibbles<S: I8Dot>(s: S, x: &[u8; 32]) -> [S::Bytes; 2] {
    let x = s.load_bytes(x);
    [s.mask(x, 15), s.mask(s.shift_right::<4>(x), 15)]
}

/// `Q4_K`'s order: the low nibbles of 32 bytes, then their high nibbles.
#[inline(always)]
fn four_bits<S: I8Dot>(s: S, qs: &[u8; 128]) -> [S::Bytes; 8] {
    let [a, b, c, d]: [[u8; 32]; 4] = bytemuck::cast(*qs);
    let ([a, b], [c, d]) = (
        [split_nibbles(s, &a), split_nibbles(s, &b)],
        [split_nibbles(s, &c), split_nibbles(s, &d)],
    );
    [a[0], a[1], b[0], b[1], c[0], c[1], d[0], d[1]]
}

/// `Q2_K`'s order: the four bit pairs of 32 bytes, lowest first.
#[inline(always)]
fn two_bits<S: I8Dot>(s: S, qs: &[u8; 64]) -> [S::Bytes; 8] {
    let [a, b]: [[u8; 32]; 2] = bytemuck::cast(*qs);
    let (a, b) = (s.load_bytes(&a), s.load_bytes(&b));
    [
        s.mask(a, 3),
        s.mask(s.shift_right::<2>(a), 3),
        s.mask(s.shift_right::<4>(a), 3),
        s.mask(s.shift_right::<6>(a), 3),
        s.mask(b, 3),
        s.mask(s.shift_right::<2>(b), 3),
        s.mask(s.shift_right::<4>(b), 3),
        s.mask(s.shift_right::<6>(b), 3),
    ]
}

/// The eight bits of 32 bytes, lowest first.
#[inline(always)]
fn one_bit<S: I8Dot>(s: S, bits: &[u8; 32]) -> [S::Bytes; 8] {
    let x = s.load_bytes(bits);
    [
        s.mask(x, 1),
        s.mask(s.shift_right::<1>(x), 1),
        s.mask(s.shift_right::<2>(x), 1),
        s.mask(s.shift_right::<3>(x), 1),
        s.mask(s.shift_right::<4>(x), 1),
        s.mask(s.shift_right::<5>(x), 1),
        s.mask(s.shift_right::<6>(x), 1),
        s.mask(s.shift_right::<7>(x), 1),
    ]
}

/// Groups whose values are offset: `scale * (q + offset)`, with signed scales.
#[inline(always)]
fn signed_groups<S: I8Dot>(s: S, d: Half, offset: f32, packed: [[u8; 8]; 2]) -> ScalesMins<S> {
    let d = s.splat_half(d);
    let mut scales_mins = [[d; 2]; 2];
    for h in 0..2 {
        scales_mins[0][h] = s.scale_floats(d, s.widen_signed(packed[h]));
        scales_mins[1][h] = s.scale_floats(scales_mins[0][h], s.splat_floats(offset));
    }
    scales_mins
}

#[inline(always)]
fn groups_of_32<S: I8Dot>(s: S, d: Half, dmin: Half, packed: ([u8; 8], [u8; 8])) -> ScalesMins<S> {
    let scales = s.scale_floats(s.splat_half(d), s.widen_unsigned(packed.0));
    let mins = s.scale_floats(s.splat_half(dmin.negated()), s.widen_unsigned(packed.1));
    [[scales; 2], [mins; 2]]
}
