//! Formats whose four bits choose among 16 uneven levels.

use stonechat_compute::simd::F32;

use super::nibbles;
use crate::block::{E2M1_TWICE, LEVELS};
use crate::packed::kernel::{Activations, Block, Format, products};
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

/// `IQ4_NL`.
pub(in crate::packed) struct Iq4Nl;

impl Format for Iq4Nl {
    const N_WORDS: usize = 4;
    const UNITS: usize = 1;

    #[inline(always)]
    unsafe fn add_block<S: PanelSimd, const M: usize>(
        s: S,
        block: Block<'_>,
        x: &Activations<'_, M>,
        at: usize,
        sums: &mut [F32<S>; M],
    ) {
        let scale = block.lone_factor(s);
        // SAFETY: the block has one unit, which the caller vouches for.
        unsafe { add_levels(s, (block, 0), (x, at), sums, scale) };
    }
}

/// Adds a unit of levels of `IQ4_NL`, whose nibbles are words `first ..` of the block.
///
/// # Safety
/// Rows of `x` have unit `at`.
#[inline(always)]
unsafe fn add_levels<S: PanelSimd, const M: usize>(
    s: S,
    (block, first): (Block<'_>, usize),
    (x, at): (&Activations<'_, M>, usize),
    sums: &mut [F32<S>; M],
    scale: F32<S>,
) {
    let table = const { larger(&LEVELS, S::BYTE_OFFSET) };
    let levels = |g| [s.lookup(&table, nibbles(s, block.word(s, first + g % 4), g >= 4))];
    // SAFETY: the caller's promise is that of all three.
    unsafe {
        let offsets = x.offsets(at, 0..2, i32::from(S::BYTE_OFFSET));
        let [levels] = products::<S, M, 1, 8>(s, [x.units(at)], 0..8, [offsets], levels);
        x.add_scaled(s, sums, levels, scale, at);
    }
}

/// `IQ4_XS`: a word of the factor and the top bits of the scales, one of their low bits, 32 of nibbles.
pub(in crate::packed) struct Iq4Xs;

impl Format for Iq4Xs {
    const N_WORDS: usize = 34;
    const UNITS: usize = 8;

    #[inline(always)]
    unsafe fn add_block<S: PanelSimd, const M: usize>(
        s: S,
        block: Block<'_>,
        x: &Activations<'_, M>,
        at: usize,
        sums: &mut [F32<S>; M],
    ) {
        let [factor, _] = block.factor_pair(s, 0);
        let (top, low) = (block.second_halves(s, 0), block.word(s, 1));
        for u in 0..8 {
            let scale = s.or(s.bits(low, 4 * u, 4), s.shift_left(s.bits(top, 2 * u, 2), 4));
            let scale = s.mul(factor, s.sub(s.to_floats(scale), s.splat(32.0)));
            // SAFETY: `u < 8`, and the caller vouches for eight units from `at`.
            unsafe { add_levels(s, (block, 2 + 4 * u), (x, at + u), sums, scale) };
        }
    }
}

/// `MXFP4`. Its levels are less than 13, so that 12 more make them codes of five bits.
pub(in crate::packed) struct Mxfp4;

impl Format for Mxfp4 {
    const N_WORDS: usize = 4;
    const UNITS: usize = 1;

    #[inline(always)]
    unsafe fn add_block<S: PanelSimd, const M: usize>(
        s: S,
        block: Block<'_>,
        x: &Activations<'_, M>,
        at: usize,
        sums: &mut [F32<S>; M],
    ) {
        let table = const { larger(&E2M1_TWICE, 12) };
        let levels = |g| [s.lookup(&table, nibbles(s, block.word(s, g % 4), g >= 4))];
        // SAFETY: unit `at`, the block's only one, is there as the caller says.
        unsafe {
            let offsets = x.offsets(at, 0..2, 12);
            let [levels] = products::<S, M, 1, 5>(s, [x.units(at)], 0..8, [offsets], levels);
            x.add_scaled(s, sums, levels, block.lone_exponent(s), at);
        }
    }
}
