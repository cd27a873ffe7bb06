//! `Q4_K`, `Q5_K` and `Q6_K`: 256 values in eight q8 blocks.

use stonechat_compute::simd::{F32, Int8};

use super::{Accumulator, Format, LoadQuants, QuantGroups, nibbles};
use crate::packed::block::PanelBlock;

/// Scales and negated mins of the eight groups of `Q4_K` or `Q5_K`: vector 0 has the f16 `d` and `dmin`, vectors 1 to 3
/// have the 6-bit scales and mins as in `block::unpack_scales_mins`.
#[inline(always)]
fn scales_mins<S: Int8>(s: S, block: PanelBlock<'_>) -> [[F32<S>; 8]; 2] {
    let [d, dmin] = block.load_f16_pair(s, 0);
    let factors = [d, s.mul(dmin, s.splat(-1.0))];
    let packed = [block.load(s, 1), block.load(s, 2), block.load(s, 3)];
    let mut scales = [[s.splat(0.0); 8]; 2];
    for which in 0..2 {
        for u in 0..4 {
            let bits = s.bits(packed[which], 8 * u, 6);
            scales[which][u] = s.mul(factors[which], s.to_floats(bits));
            let low = s.bits(packed[2], 8 * u + 4 * which, 4);
            let high = s.mask(s.bits(packed[which], 8 * u + 2, 6), 48);
            scales[which][u + 4] = s.mul(factors[which], s.to_floats(s.or(low, high)));
        }
    }
    scales
}

/// `Q4_K`, or with a fifth bit `Q5_K`.
///
/// ```text
/// vector 0        f16 d, f16 dmin
/// vectors 1..4    6-bit scales and mins
/// Q5_K, 4..12     quad g of 32 bytes: bit u of each byte = fifth bit in q8 block u
/// last 32         quads of q8 blocks 2 p (low nibbles) and 2 p + 1 (high nibbles), 8 vectors for each p
/// ```
pub(in crate::packed) struct NibblesK<const FIFTH_BIT: bool>;

impl<const FIFTH_BIT: bool> Format for NibblesK<FIFTH_BIT> {
    const BLOCK_VECTORS: usize = if FIFTH_BIT { 44 } else { 36 };
    const QBLOCKS: usize = 8;

    #[inline(always)]
    fn unpack<S: Int8>(s: S, block: PanelBlock<'_>, sink: &mut impl Accumulator<S>) {
        let [scales, mins] = scales_mins(s, block);
        if FIFTH_BIT {
            block.prefetch_for(4..12);
        }
        for pair in 0..4 {
            let u = 2 * pair;
            let groups = QuantGroups {
                qblocks: [u, u + 1],
                quads: 0..8,
                offset: 0,
                scales: [scales[u], scales[u + 1]],
                mins: Some([mins[u], mins[u + 1]]),
            };
            let nibbles = NibblePairs { block, first: Self::BLOCK_VECTORS - 32 + 8 * pair };
            if FIFTH_BIT {
                sink.accumulate::<2, 5>(s, groups, &FiveBits { nibbles, qblock: u });
            } else {
                sink.accumulate::<2, 4>(s, groups, &nibbles);
            }
        }
    }
}

/// Nibbles of two q8 blocks: the low and the high ones of vectors from `first` on.
struct NibblePairs<'a> {
    block: PanelBlock<'a>,
    first: usize,
}

impl<S: Int8> LoadQuants<S, 2> for NibblePairs<'_> {
    #[inline(always)]
    fn load_quants(&self, s: S, quad: usize) -> [S::U32s; 2] {
        let q = self.block.load(s, self.first + quad);
        [nibbles(s, q, false), nibbles(s, q, true)]
    }
}

/// 5-bit quants: nibbles, and fifth bits in the bytes of vectors 4 to 11, bit `qblock` for the low and the next one for the high
/// nibbles.
struct FiveBits<'a> {
    nibbles: NibblePairs<'a>,
    qblock: usize,
}

impl<S: Int8> LoadQuants<S, 2> for FiveBits<'_> {
    #[inline(always)]
    fn load_quants(&self, s: S, quad: usize) -> [S::U32s; 2] {
        let [low, high] = self.nibbles.load_quants(s, quad);
        let bits = s.shift_right(self.nibbles.block.reload(s, 4 + quad), self.qblock);
        let fifth = [s.shift_left(bits, 4), s.shift_left(bits, 3)];
        [s.or(low, s.mask(fifth[0], 16)), s.or(high, s.mask(fifth[1], 16))]
    }
}

/// `Q6_K`, with the block scale in a vector of scales.
///
/// ```text
/// vectors 0..4    scale of 16 groups of 16, i8
/// 4 quarters (h, p) of 12 vectors, quads 4 p .. 4 p + 4 of q8 blocks 4 h .. 4 h + 4:
///   4             bits 4..6 of q8 block 4 h + i in bits 2 i .. 2 i + 2
///   4             bits 0..4 of q8 blocks 4 h (low nibbles) and 4 h + 2 (high nibbles)
///   4             bits 0..4 of q8 blocks 4 h + 1 and 4 h + 3
/// ```
pub(in crate::packed) struct Q6K;

impl Format for Q6K {
    const BLOCK_VECTORS: usize = 52;
    const QBLOCKS: usize = 8;
    const BLOCKS_PER_SCALE_VECTOR: usize = 2;

    #[inline(always)]
    fn unpack<S: Int8>(s: S, block: PanelBlock<'_>, sink: &mut impl Accumulator<S>) {
        let d = block.load_scale_f16(s);
        let mut scales = [s.splat(0.0); 16];
        for (group, scale) in scales.iter_mut().enumerate() {
            let signed = s.signed_byte(block.load(s, group / 4), group % 4);
            *scale = s.mul(d, s.to_floats(signed));
        }
        for quarter in 0..4 {
            let (first, part) = (4 * (quarter / 2), quarter % 2);
            for pair in 0..2 {
                let (u, v) = (first + pair, first + pair + 2);
                let groups = QuantGroups {
                    qblocks: [u, v],
                    quads: 4 * part..4 * part + 4,
                    offset: 32,
                    scales: [scales[2 * u + part], scales[2 * v + part]],
                    mins: None,
                };
                let quants = SixBits { block, first: 4 + 12 * quarter, pair };
                sink.accumulate::<2, 6>(s, groups, &quants);
            }
        }
    }
}

/// Half of q8 blocks `pair` and `pair + 2` of four, in a quarter from vector `first` on.
struct SixBits<'a> {
    block: PanelBlock<'a>,
    first: usize,
    pair: usize,
}

impl<S: Int8> LoadQuants<S, 2> for SixBits<'_> {
    #[inline(always)]
    fn load_quants(&self, s: S, quad: usize) -> [S::U32s; 2] {
        let bits = s.shift_right(self.block.load(s, self.first + quad % 4), 2 * self.pair);
        let q = self.block.load(s, self.first + 4 * (1 + self.pair) + quad % 4);
        [
            s.or(nibbles(s, q, false), s.mask(s.shift_left(bits, 4), 48)),
            s.or(nibbles(s, q, true), s.mask(bits, 48)),
        ]
    }
}
