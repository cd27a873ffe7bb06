//! Formats whose nibbles are indices into 16 levels: `IQ4_NL`, `IQ4_XS` and `MXFP4`.

use stonechat_compute::simd::{F32, Int8};

use super::{Accumulator, Format, LoadQuants, Nibbles, QuantGroups};
use crate::block::{E2M1_TWICE, LEVELS};
use crate::packed::block::PanelBlock;

/// The levels as unsigned bytes `level + offset`.
const fn offset_levels(levels: &[i8; 16], offset: u8) -> [u8; 16] {
    let mut bytes = [0; 16];
    let mut i = 0;
    while i < 16 {
        bytes[i] = levels[i].cast_unsigned().wrapping_add(offset);
        i += 1;
    }
    bytes
}

/// `table[nibble]`.
struct Levels<'a> {
    nibbles: Nibbles<'a>,
    table: [u8; 16],
}

impl<S: Int8> LoadQuants<S, 1> for Levels<'_> {
    #[inline(always)]
    fn load_quants(&self, s: S, quad: usize) -> [S::U32s; 1] {
        let [nibbles] = self.nibbles.load_quants(s, quad);
        [s.lookup(&self.table, nibbles)]
    }
}

/// `IQ4_NL`: scale in a vector of scales, 4 vectors of nibbles.
pub(in crate::packed) struct Iq4Nl;

impl Format for Iq4Nl {
    const BLOCK_VECTORS: usize = 4;
    const QBLOCKS: usize = 1;
    const BLOCKS_PER_SCALE_VECTOR: usize = 2;

    #[inline(always)]
    fn unpack<S: Int8>(s: S, block: PanelBlock<'_>, sink: &mut impl Accumulator<S>) {
        let scale = block.load_scale_f16(s);
        accumulate_levels(s, block, (0, 0), scale, sink);
    }
}

/// Gives `sink` a group of `IQ4_NL` levels for q8 block `qblock`, with nibbles in vectors `first ..`.
#[inline(always)]
fn accumulate_levels<S: Int8>(
    s: S,
    block: PanelBlock<'_>,
    (qblock, first): (usize, usize),
    scale: F32<S>,
    sink: &mut impl Accumulator<S>,
) {
    let table = const { offset_levels(&LEVELS, S::BYTE_OFFSET) };
    let levels = Levels { nibbles: Nibbles { block, first }, table };
    let offset = i32::from(S::BYTE_OFFSET);
    let groups =
        QuantGroups { qblocks: [qblock], quads: 0..8, offset, scales: [scale], mins: None };
    sink.accumulate::<1, 8>(s, groups, &levels);
}

/// `IQ4_XS`.
///
/// ```text
/// vector 0      f16 d; u16: bits 2 u .. 2 u + 2 = high bits of scale u
/// vector 1      bits 4 u .. 4 u + 4 = low bits of scale u
/// vectors 2..   4 vectors of nibbles for each q8 block
/// ```
pub(in crate::packed) struct Iq4Xs;

impl Format for Iq4Xs {
    const BLOCK_VECTORS: usize = 34;
    const QBLOCKS: usize = 8;

    #[inline(always)]
    fn unpack<S: Int8>(s: S, block: PanelBlock<'_>, sink: &mut impl Accumulator<S>) {
        let [d, _] = block.load_f16_pair(s, 0);
        let (high, low) = (block.load_second_u16(s, 0), block.load(s, 1));
        for u in 0..8 {
            let scale = s.or(s.bits(low, 4 * u, 4), s.shift_left(s.bits(high, 2 * u, 2), 4));
            let scale = s.mul(d, s.sub(s.to_floats(scale), s.splat(32.0)));
            accumulate_levels(s, block, (u, 2 + 4 * u), scale, sink);
        }
    }
}

/// `MXFP4`: E8M0 scale in a vector of scales, 4 vectors of nibbles. Doubled levels are in -12..=12, so that an offset of
/// 12 makes them quants of five bits.
pub(in crate::packed) struct Mxfp4;

impl Format for Mxfp4 {
    const BLOCK_VECTORS: usize = 4;
    const QBLOCKS: usize = 1;
    const BLOCKS_PER_SCALE_VECTOR: usize = 4;

    #[inline(always)]
    fn unpack<S: Int8>(s: S, block: PanelBlock<'_>, sink: &mut impl Accumulator<S>) {
        let table = const { offset_levels(&E2M1_TWICE, 12) };
        let levels = Levels { nibbles: Nibbles { block, first: 0 }, table };
        let scales = [block.load_scale_e8m0(s)];
        let groups = QuantGroups { qblocks: [0], quads: 0..8, offset: 12, scales, mins: None };
        sink.accumulate::<1, 5>(s, groups, &levels);
    }
}
