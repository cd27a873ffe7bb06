//! Formats of 32 values with one scale.

use stonechat_compute::simd::Int8;

use super::{Accumulator, Format, LoadQuants, Nibbles, QuantGroups};
use crate::packed::block::PanelBlock;

/// `Q4_0`, `Q4_1`, `Q5_0` and `Q5_1`.
///
/// ```text
/// with a min:        vector 0: f16 scale, f16 min
/// without:           scale in a vector of scales; w = scale * (q - 8), with a fifth bit scale * (q - 16)
/// with a fifth bit:  next vector: bit g of byte b = fifth bit of value 4 g + b
/// last 4 vectors:    nibbles
/// ```
pub(in crate::packed) struct Nibbles32<const HAS_MIN: bool, const FIFTH_BIT: bool>;

impl<const HAS_MIN: bool, const FIFTH_BIT: bool> Format for Nibbles32<HAS_MIN, FIFTH_BIT> {
    const BLOCK_VECTORS: usize = 4 + HAS_MIN as usize + FIFTH_BIT as usize;
    const QBLOCKS: usize = 1;
    const BLOCKS_PER_SCALE_VECTOR: usize = if HAS_MIN { 0 } else { 2 };

    #[inline(always)]
    fn unpack<S: Int8>(s: S, block: PanelBlock<'_>, sink: &mut impl Accumulator<S>) {
        let (offset, scale, mins) = if HAS_MIN {
            let [scale, min] = block.load_f16_pair(s, 0);
            (0, scale, Some([min]))
        } else {
            (if FIFTH_BIT { 16 } else { 8 }, block.load_scale_f16(s), None)
        };
        let groups = QuantGroups { qblocks: [0], quads: 0..8, offset, scales: [scale], mins };
        let nibbles = Nibbles { block, first: Self::BLOCK_VECTORS - 4 };
        if FIFTH_BIT {
            let fifth = block.load(s, usize::from(HAS_MIN));
            sink.accumulate::<1, 5>(s, groups, &FiveBits::<S> { nibbles, fifth });
        } else {
            sink.accumulate::<1, 4>(s, groups, &nibbles);
        }
    }
}

/// Nibbles with a fifth bit: those of quad `g` are bits `g` of the bytes of `fifth`.
struct FiveBits<'a, S: Int8> {
    nibbles: Nibbles<'a>,
    fifth: S::U32s,
}

impl<S: Int8> LoadQuants<S, 1> for FiveBits<'_, S> {
    #[inline(always)]
    fn load_quants(&self, s: S, quad: usize) -> [S::U32s; 1] {
        let [nibbles] = self.nibbles.load_quants(s, quad);
        let bit = if quad < 4 {
            s.shift_left(self.fifth, 4 - quad)
        } else {
            s.shift_right(self.fifth, quad - 4)
        };
        [s.or(nibbles, s.mask(bit, 16))]
    }
}

/// `Q8_0`: scale in a vector of scales, 8 vectors of quads as bytes offset by 128.
pub(in crate::packed) struct Q8_0;

impl Format for Q8_0 {
    const BLOCK_VECTORS: usize = 8;
    const QBLOCKS: usize = 1;
    const BLOCKS_PER_SCALE_VECTOR: usize = 2;
    const IS_PLAIN_BYTES: bool = true;

    #[inline(always)]
    fn unpack<S: Int8>(s: S, block: PanelBlock<'_>, sink: &mut impl Accumulator<S>) {
        let offset = i32::from(S::BYTE_OFFSET);
        let scales = [block.load_scale_f16(s)];
        let groups = QuantGroups { qblocks: [0], quads: 0..8, offset, scales, mins: None };
        sink.accumulate::<1, 8>(s, groups, &Bytes(block));
    }
}

struct Bytes<'a>(PanelBlock<'a>);

impl<S: Int8> LoadQuants<S, 1> for Bytes<'_> {
    #[inline(always)]
    fn load_quants(&self, s: S, quad: usize) -> [S::U32s; 1] {
        [s.offset_bytes(self.0.load(s, quad))]
    }
}
