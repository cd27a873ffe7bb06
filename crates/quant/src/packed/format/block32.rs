//! Formats of 32 values with one scale.

use stonechat_compute::simd::F32;

use super::nibbles;
use crate::packed::kernel::{Activations, Block, Format, products};
use crate::packed::simd::PanelSimd;

/// `Q4_0` and `Q4_1`, or with a fifth bit `Q5_0` and `Q5_1`: those with a min have it beside the scale in
/// their first word; the others subtract half of the range.
pub(in crate::packed) struct Nibbles32<const HAS_MIN: bool, const FIFTH_BIT: bool>;

impl<const HAS_MIN: bool, const FIFTH_BIT: bool> Format for Nibbles32<HAS_MIN, FIFTH_BIT> {
    const N_WORDS: usize = 4 + HAS_MIN as usize + FIFTH_BIT as usize;
    const UNITS: usize = 1;

    #[inline(always)]
    unsafe fn add_block<S: PanelSimd, const M: usize>(
        s: S,
        block: Block<'_>,
        x: &Activations<'_, M>,
        at: usize,
        sums: &mut [F32<S>; M],
    ) {
        let offset = if HAS_MIN {
            0
        } else if FIFTH_BIT {
            16
        } else {
            8
        };
        let nibble = |g| nibbles(s, block.word(s, Self::N_WORDS - 4 + g % 4), g >= 4);
        // SAFETY: the caller vouches for unit `at`, the only one used here.
        unsafe {
            let (units, offsets) = (x.units(at), x.offsets(at, 0..2, offset));
            let [sums_of_unit] = if FIFTH_BIT {
                let fifth = block.word(s, usize::from(HAS_MIN));
                products::<S, M, 1, 5>(s, [units], 0..8, [offsets], |g| {
                    // The bits of group `g` are bits `g` of the bytes.
                    let bit = if g < 4 {
                        s.shift_left(fifth, 4 - g)
                    } else {
                        s.shift_right(fifth, g - 4)
                    };
                    [s.or(nibble(g), s.mask(bit, 16))]
                })
            } else {
                products::<S, M, 1, 4>(s, [units], 0..8, [offsets], |g| [nibble(g)])
            };
            if HAS_MIN {
                let [scale, min] = block.factor_pair(s, 0);
                x.add_scaled(s, sums, sums_of_unit, scale, at);
                x.add_min(s, sums, min, at);
            } else {
                x.add_scaled(s, sums, sums_of_unit, block.lone_factor(s), at);
            }
        }
    }
}

/// `Q8_0`, its values 128 larger.
pub(in crate::packed) struct Q8_0;

impl Format for Q8_0 {
    const N_WORDS: usize = 8;
    const UNITS: usize = 1;

    #[inline(always)]
    unsafe fn add_block<S: PanelSimd, const M: usize>(
        s: S,
        block: Block<'_>,
        x: &Activations<'_, M>,
        at: usize,
        sums: &mut [F32<S>; M],
    ) {
        // SAFETY: unit `at` is the caller's promise.
        unsafe {
            let offsets = x.offsets(at, 0..2, i32::from(S::BYTE_OFFSET));
            let bytes = |g| [s.unbias(block.word(s, g))];
            let [sums_of_unit] = products::<S, M, 1, 8>(s, [x.units(at)], 0..8, [offsets], bytes);
            x.add_scaled(s, sums, sums_of_unit, block.lone_factor(s), at);
        }
    }
}
