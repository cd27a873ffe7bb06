//! Formats of 256 values in eight units.

use stonechat_compute::simd::F32;

use super::nibbles;
use crate::packed::kernel::{Block, Codes, Format, Groups, Sink};
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
        if FIFTH_BIT {
            block.ask_for(4..12);
        }
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
            let nibbles = Halves { block, first: Self::N_WORDS - 32 + 8 * pair };
            // SAFETY: `u + 1 < 8`, and the caller vouches for eight units.
            unsafe {
                if FIFTH_BIT {
                    sink.take::<2, 5>(s, of, &FiveBits { nibbles, unit: u });
                } else {
                    sink.take::<2, 4>(s, of, &nibbles);
                }
            }
        }
    }
}

/// Nibbles of two units, the low and the high ones of words from `first` on.
struct Halves<'a> {
    block: Block<'a>,
    first: usize,
}

impl<S: PanelSimd> Groups<S, 2> for Halves<'_> {
    #[inline(always)]
    fn group(&self, s: S, g: usize) -> [S::Words; 2] {
        let q = self.block.word(s, self.first + g);
        [nibbles(s, q, false), nibbles(s, q, true)]
    }
}

/// Nibbles with a fifth bit: those of unit `u` are bits `u` of words 4 to 11.
struct FiveBits<'a> {
    nibbles: Halves<'a>,
    unit: usize,
}

impl<S: PanelSimd> Groups<S, 2> for FiveBits<'_> {
    #[inline(always)]
    fn group(&self, s: S, g: usize) -> [S::Words; 2] {
        let [low, high] = self.nibbles.group(s, g);
        let bits = s.shift_right(self.nibbles.block.word_again(s, 4 + g), self.unit);
        let fifth = [s.shift_left(bits, 4), s.shift_left(bits, 3)];
        [s.or(low, s.mask(fifth[0], 16)), s.or(high, s.mask(fifth[1], 16))]
    }
}

/// `Q6_K`: 4 words of scales, then for each quarter of the values 4 words of two bits and 8 of nibbles.
pub(in crate::packed) struct Q6K;

impl Format for Q6K {
    const N_WORDS: usize = 52;
    const UNITS: usize = 8;
    const SHARING: usize = 2;

    #[inline(always)]
    unsafe fn unpack<S: PanelSimd>(s: S, block: Block<'_>, sink: &mut impl Sink<S>) {
        let factor = block.lone_factor(s);
        let mut scales = [s.splat(0.0); 16];
        for (group, scale) in scales.iter_mut().enumerate() {
            let signed = s.signed_byte(block.word(s, group / 4), group % 4);
            *scale = s.mul(factor, s.to_floats(signed));
        }
        // Halves of four units share words of two bits, and two of them words of nibbles.
        for quarter in 0..4 {
            let (first, part) = (4 * (quarter / 2), quarter % 2);
            for pair in 0..2 {
                let (u, v) = (first + pair, first + pair + 2);
                let of = Codes {
                    units: [u, v],
                    groups: 4 * part..4 * part + 4,
                    offset: 32,
                    scales: [scales[2 * u + part], scales[2 * v + part]],
                    mins: None,
                };
                let codes = SixBits { block, first: 4 + 12 * quarter, pair };
                // SAFETY: `v < 8`, and the caller vouches for eight units.
                unsafe { sink.take::<2, 6>(s, of, &codes) };
            }
        }
    }
}

/// Halves of two units of four: of words from `first` on, four have two bits of each of the four, four the nibbles of
/// the first and the third unit, four those of the others.
struct SixBits<'a> {
    block: Block<'a>,
    first: usize,
    pair: usize,
}

impl<S: PanelSimd> Groups<S, 2> for SixBits<'_> {
    #[inline(always)]
    fn group(&self, s: S, g: usize) -> [S::Words; 2] {
        let bits = s.shift_right(self.block.word(s, self.first + g % 4), 2 * self.pair);
        let q = self.block.word(s, self.first + 4 * (1 + self.pair) + g % 4);
        [
            s.or(nibbles(s, q, false), s.mask(s.shift_left(bits, 4), 48)),
            s.or(nibbles(s, q, true), s.mask(bits, 48)),
        ]
    }
}
