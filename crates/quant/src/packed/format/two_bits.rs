//! `Q2_K` and `Q3_K`: 256 values of two or three bits in groups of 16.

use stonechat_compute::simd::{F32, Int8};

use super::{Accumulator, Format, LoadQuants, QuantGroups};
use crate::packed::block::PanelBlock;

/// Two bits of q8 blocks `2 pair` and `2 pair + 1`: vector `first + 8 h + quad` has those of q8 blocks `4 h .. 4 h + 4`,
/// the lowest first.
struct TwoBits<'a> {
    block: PanelBlock<'a>,
    first: usize,
    pair: usize,
}

impl<S: Int8> LoadQuants<S, 2> for TwoBits<'_> {
    #[inline(always)]
    fn load_quants(&self, s: S, quad: usize) -> [S::U32s; 2] {
        let bits = self.block.load(s, self.first + 8 * (self.pair / 2) + quad);
        let q = s.shift_right(bits, 4 * (self.pair % 2));
        [s.mask(q, 3), s.mask(s.shift_right(q, 2), 3)]
    }
}

/// `Q2_K`.
///
/// ```text
/// vector 0        f16 d, f16 dmin
/// vectors 1..5    byte i = group 4 (vector - 1) + i: scale in bits 0..4, min in bits 4..8
/// vectors 5..21   two bits
/// ```
pub(in crate::packed) struct Q2K;

impl Format for Q2K {
    const BLOCK_VECTORS: usize = 21;
    const QBLOCKS: usize = 8;

    #[inline(always)]
    fn unpack<S: Int8>(s: S, block: PanelBlock<'_>, sink: &mut impl Accumulator<S>) {
        let [d, dmin] = block.load_f16_pair(s, 0);
        let dmin = s.mul(dmin, s.splat(-1.0));
        for pair in 0..4 {
            let packed = block.load(s, 1 + pair);
            for part in 0..2 {
                let (a, b) = (8 * part, 8 * (2 + part));
                let bits = |at| s.to_floats(s.bits(packed, at, 4));
                let groups = QuantGroups {
                    qblocks: [2 * pair, 2 * pair + 1],
                    quads: 4 * part..4 * part + 4,
                    offset: 0,
                    scales: [s.mul(d, bits(a)), s.mul(d, bits(b))],
                    mins: Some([s.mul(dmin, bits(a + 4)), s.mul(dmin, bits(b + 4))]),
                };
                sink.accumulate::<2, 2>(s, groups, &TwoBits { block, first: 5, pair });
            }
        }
    }
}

/// `Q3_K`, with the block scale in a vector of scales.
///
/// ```text
/// vectors 0..3     6-bit scales
/// vectors 3..11    quad g of 32 bytes: bit u of each byte = third bit in q8 block u
/// vectors 11..27   two bits
/// ```
pub(in crate::packed) struct Q3K;

/// Two bits and a third, from vectors 3 to 10.
struct ThreeBits<'a>(TwoBits<'a>);

impl<S: Int8> LoadQuants<S, 2> for ThreeBits<'_> {
    #[inline(always)]
    fn load_quants(&self, s: S, quad: usize) -> [S::U32s; 2] {
        let [low, high] = self.0.load_quants(s, quad);
        let bits = s.shift_right(self.0.block.reload(s, 3 + quad), 2 * self.0.pair);
        let third = [s.shift_left(bits, 2), s.shift_left(bits, 1)];
        [s.or(low, s.mask(third[0], 4)), s.or(high, s.mask(third[1], 4))]
    }
}

/// Scale of group `group`, minus 32: low four bits in the first two vectors, high two in the third.
#[inline(always)]
fn scale<S: Int8>(s: S, packed: [S::U32s; 3], group: usize) -> F32<S> {
    let low = s.bits(packed[group % 8 / 4], 8 * (group % 4) + 4 * (group / 8), 4);
    let high = s.bits(packed[2], 8 * (group % 4) + 2 * (group / 4), 2);
    s.sub(s.to_floats(s.or(low, s.shift_left(high, 4))), s.splat(32.0))
}

impl Format for Q3K {
    const BLOCK_VECTORS: usize = 27;
    const QBLOCKS: usize = 8;
    const BLOCKS_PER_SCALE_VECTOR: usize = 2;

    #[inline(always)]
    fn unpack<S: Int8>(s: S, block: PanelBlock<'_>, sink: &mut impl Accumulator<S>) {
        let d = block.load_scale_f16(s);
        block.prefetch_for(3..11);
        let packed = [block.load(s, 0), block.load(s, 1), block.load(s, 2)];
        let mut scales = [s.splat(0.0); 16];
        for (group, to) in scales.iter_mut().enumerate() {
            *to = s.mul(d, scale(s, packed, group));
        }
        for pair in 0..4 {
            let u = 2 * pair;
            for part in 0..2 {
                let quants = ThreeBits(TwoBits { block, first: 11, pair });
                let groups = QuantGroups {
                    qblocks: [u, u + 1],
                    quads: 4 * part..4 * part + 4,
                    offset: 4,
                    scales: [scales[2 * u + part], scales[2 * u + 2 + part]],
                    mins: None,
                };
                sink.accumulate::<2, 3>(s, groups, &quants);
            }
        }
    }
}
