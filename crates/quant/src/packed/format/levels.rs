//! Formats whose four bits choose among 16 uneven levels.

use stonechat_compute::simd::F32;

use super::Nibbles;
use crate::block::{E2M1_TWICE, LEVELS};
use crate::packed::kernel::{Block, Codes, Format, Groups, Sink};
use crate::packed::simd::PanelSimd;

/// The levels as unsigned bytes, `offset` larger.
const fn larger(levels: &[i8; 16], offset: u8) -> [u8; 16] {
    let mut bytes = [0; 16];
    let mut i = 0;
    while i < 16 {
        bytes[i] = levels[i].cast_unsigned().wrapping_add(offset);
        i += 1;
    }
    bytes
}

/// Nibbles that choose among 16 bytes.
struct Levels<'a> {
    nibbles: Nibbles<'a>,
    table: [u8; 16],
}

impl<S: PanelSimd> Groups<S, 1> for Levels<'_> {
    #[inline(always)]
    fn group(&self, s: S, g: usize) -> [S::Words; 1] {
        let [nibbles] = self.nibbles.group(s, g);
        [s.lookup(&self.table, nibbles)]
    }
}

/// `IQ4_NL`.
pub(in crate::packed) struct Iq4Nl;

impl Format for Iq4Nl {
    const N_WORDS: usize = 4;
    const UNITS: usize = 1;
    const SHARING: usize = 2;

    #[inline(always)]
    unsafe fn unpack<S: PanelSimd>(s: S, block: Block<'_>, sink: &mut impl Sink<S>) {
        let scale = block.lone_factor(s);
        // SAFETY: the block has one unit, which the caller vouches for.
        unsafe { take_levels(s, block, (0, 0), scale, sink) };
    }
}

/// Gives `sink` a unit of levels of `IQ4_NL`, whose nibbles are words `first ..` of the block.
///
/// # Safety
/// The sink's contract for the unit.
#[inline(always)]
unsafe fn take_levels<S: PanelSimd>(
    s: S,
    block: Block<'_>,
    (unit, first): (usize, usize),
    scale: F32<S>,
    sink: &mut impl Sink<S>,
) {
    let table = const { larger(&LEVELS, S::BYTE_OFFSET) };
    let levels = Levels { nibbles: Nibbles { block, first }, table };
    let offset = i32::from(S::BYTE_OFFSET);
    let of = Codes { units: [unit], groups: 0..8, offset, scales: [scale], mins: None };
    // SAFETY: the caller's promise is the sink's.
    unsafe { sink.take::<1, 8>(s, of, &levels) };
}

/// `IQ4_XS`: a word of the factor and the top bits of the scales, one of their low bits, 32 of nibbles.
pub(in crate::packed) struct Iq4Xs;

impl Format for Iq4Xs {
    const N_WORDS: usize = 34;
    const UNITS: usize = 8;

    #[inline(always)]
    unsafe fn unpack<S: PanelSimd>(s: S, block: Block<'_>, sink: &mut impl Sink<S>) {
        let [factor, _] = block.factor_pair(s, 0);
        let (top, low) = (block.second_halves(s, 0), block.word(s, 1));
        for u in 0..8 {
            let scale = s.or(s.bits(low, 4 * u, 4), s.shift_left(s.bits(top, 2 * u, 2), 4));
            let scale = s.mul(factor, s.sub(s.to_floats(scale), s.splat(32.0)));
            // SAFETY: `u < 8`, and the caller vouches for eight units.
            unsafe { take_levels(s, block, (u, 2 + 4 * u), scale, sink) };
        }
    }
}

/// `MXFP4`. Its levels are less than 13, so that 12 more make them codes of five bits.
pub(in crate::packed) struct Mxfp4;

impl Format for Mxfp4 {
    const N_WORDS: usize = 4;
    const UNITS: usize = 1;
    const SHARING: usize = 4;

    #[inline(always)]
    unsafe fn unpack<S: PanelSimd>(s: S, block: Block<'_>, sink: &mut impl Sink<S>) {
        let table = const { larger(&E2M1_TWICE, 12) };
        let levels = Levels { nibbles: Nibbles { block, first: 0 }, table };
        let scales = [block.lone_exponent(s)];
        let of = Codes { units: [0], groups: 0..8, offset: 12, scales, mins: None };
        // SAFETY: the block's only unit is there as the caller says.
        unsafe { sink.take::<1, 5>(s, of, &levels) };
    }
}
