//! Formats of 256 values in eight units.

use stonechat_compute::simd::F32;

use super::nibbles;
use crate::packed::kernel::{Block, Codes, Format, Sink};
use crate::packed::simd::PanelSimd;

/// Scales and mins of a block of `Q4_K` or `Q5_K`: of the words, one has two f16 factors, three have eight
/// scales and eight mins of six bits.
#[inline(always)]
fn scales_and_mins<S: PanelSimd>(s: S, block: Block<'_>) -> [[F32<S>; 8]; 2] {
    let [scale, min] = block.factor_pair(s, 0);
    let factors = [scale, s.mul(min, s.splat(-1.0))];
    let packed = [block.word(s, 1), block.word(s, 2), block.word(s, 3)];
    let mut scales = [[s.splat(0.0); 8]; 2];
    for which in 0..2 {
        for u in 0..4 {
            let bits = s.bits(packed[which], 8 * u, 6);
            scales[which][u] = s.mul(factors[which], s.to_floats(bits));
            // The last four have four bits in the last word and the top two in the other words.
            let low = s.bits(packed[2], 8 * u + 4 * which, 4);
            let top = s.mask(s.bits(packed[which], 8 * u + 2, 6), 48);
            scales[which][u + 4] = s.mul(factors[which], s.to_floats(s.or(low, top)));
        }
    }
    scales
}

/// `Q4_K`, or with a fifth bit `Q5_K`.
pub(in crate::packed) struct NibblesK<const FIFTH_BIT: bool>;

impl<const FIFTH_BIT: bool> Format for NibblesK<FIFTH_BIT> {
    const N_WORDS: usize = if FIFTH_BIT { 44 } else { 36 };
    const UNITS: usize = 8;

    #[inline(always)]
    unsafe fn unpack<S: PanelSimd>(s: S, block: Block<'_>, sink: &mut impl Sink<S>) {
        let [scales, mins] = scales_and_mins(s, block);
        // Two units share their words: low nibbles and high ones.
        for pair in 0..4 {
            let u = 2 * pair;
            let of = Codes {
                units: [u, u + 1],
                groups: 0..8,
                offset: 0,
                scales: [scales[u], scales[u + 1]],
                mins: Some([mins[u], mins[u + 1]]),
            };
            let nibbles = |g| {
                let q = block.word(s, Self::N_WORDS - 32 + 8 * pair + g);
                [nibbles(s, q, false), nibbles(s, q, true)]
            };
            // SAFETY: `u + 1 < 8`, and the caller vouches for eight units.
            unsafe {
                if FIFTH_BIT {
                    sink.take::<2, 5>(s, of, |g| {
                        let [low, high] = nibbles(g);
                        let bits = s.shift_right(block.word(s, 4 + g), u);
                        let fifth = [s.shift_left(bits, 4), s.shift_left(bits, 3)];
                        [s.or(low, s.mask(fifth[0], 16)), s.or(high, s.mask(fifth[1], 16))]
                    });
                } else {
                    sink.take::<2, 4>(s, of, nibbles);
                }
            }
        }
    }
}

/// `Q6_K`: 32 words of nibbles, 16 of two bits, 4 of scales.
pub(in crate::packed) struct Q6K;

impl Format for Q6K {
    const N_WORDS: usize = 52;
    const UNITS: usize = 8;

    #[inline(always)]
    unsafe fn unpack<S: PanelSimd>(s: S, block: Block<'_>, sink: &mut impl Sink<S>) {
        let factor = block.lone_factor(s);
        let mut scales = [s.splat(0.0); 16];
        for (group, scale) in scales.iter_mut().enumerate() {
            let signed = s.signed_byte(block.word(s, 48 + group / 4), group % 4);
            *scale = s.mul(factor, s.to_floats(signed));
        }
        // Of the four units of a half, the first and third share words of nibbles, as do the others.
        for pair in 0..4 {
            let (half, quarter) = (pair / 2, pair % 2);
            let (u, v) = (4 * half + quarter, 4 * half + quarter + 2);
            for part in 0..2 {
                let of = Codes {
                    units: [u, v],
                    groups: 4 * part..4 * part + 4,
                    offset: 32,
                    scales: [scales[2 * u + part], scales[2 * v + part]],
                    mins: None,
                };
                let codes = |g| {
                    let q = block.word(s, 16 * half + 8 * quarter + g);
                    // Bits 0 and 1 for this quarter, 4 and 5 for the other unit.
                    let bits = s.shift_right(block.word(s, 32 + 8 * half + g), 2 * quarter);
                    let low = s.mask(s.shift_left(bits, 4), 48);
                    [s.or(nibbles(s, q, false), low), s.or(nibbles(s, q, true), s.mask(bits, 48))]
                };
                // SAFETY: `u` and `v` are below 8, and the caller vouches for eight units.
                unsafe { sink.take::<2, 6>(s, of, codes) };
            }
        }
    }
}
