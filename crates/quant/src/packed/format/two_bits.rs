//! `Q2_K` and `Q3_K`: 256 values of two or three bits in groups of 16.

use stonechat_compute::simd::F32;

use crate::packed::kernel::{Block, Codes, Format, Groups, Sink};
use crate::packed::simd::PanelSimd;

/// Two bits of units `2 pair` and `2 pair + 1`; a word has them of four units. `first` is the first of these
/// words.
struct TwoBits<'a> {
    block: Block<'a>,
    first: usize,
    pair: usize,
}

impl<S: PanelSimd> Groups<S, 2> for TwoBits<'_> {
    #[inline(always)]
    fn group(&self, s: S, g: usize) -> [S::Words; 2] {
        let word = self.block.word(s, self.first + 8 * (self.pair / 2) + g);
        let q = s.shift_right(word, 4 * (self.pair % 2));
        [s.mask(q, 3), s.mask(s.shift_right(q, 2), 3)]
    }
}

/// `Q2_K`: one word of two factors, 4 of scales and mins, 16 of values.
pub(in crate::packed) struct Q2K;

impl Format for Q2K {
    const N_WORDS: usize = 21;
    const UNITS: usize = 8;

    #[inline(always)]
    unsafe fn unpack<S: PanelSimd>(s: S, block: Block<'_>, sink: &mut impl Sink<S>) {
        let [factor, min] = block.factor_pair(s, 0);
        let min = s.mul(min, s.splat(-1.0));
        for pair in 0..4 {
            let packed = block.word(s, 1 + pair);
            for part in 0..2 {
                // Byte `2 n + part` has a scale and a min of four bits.
                let (a, b) = (8 * part, 8 * (2 + part));
                let bits = |at| s.to_floats(s.bits(packed, at, 4));
                let of = Codes {
                    units: [2 * pair, 2 * pair + 1],
                    groups: 4 * part..4 * part + 4,
                    offset: 0,
                    scales: [s.mul(factor, bits(a)), s.mul(factor, bits(b))],
                    mins: Some([s.mul(min, bits(a + 4)), s.mul(min, bits(b + 4))]),
                };
                // SAFETY: `2 * pair + 1 < 8`, and the caller vouches for eight units.
                unsafe { sink.take::<2, 2>(s, of, &TwoBits { block, first: 5, pair }) };
            }
        }
    }
}

/// `Q3_K`: 3 words of scales, 8 of third bits, 16 of two bits.
pub(in crate::packed) struct Q3K;

/// Two bits and a third, which the words after the scales have.
struct ThreeBits<'a>(TwoBits<'a>);

impl<S: PanelSimd> Groups<S, 2> for ThreeBits<'_> {
    #[inline(always)]
    fn group(&self, s: S, g: usize) -> [S::Words; 2] {
        let [low, high] = self.0.group(s, g);
        let bits = s.shift_right(self.0.block.word_again(s, 3 + g), 2 * self.0.pair);
        let third = [s.shift_left(bits, 2), s.shift_left(bits, 1)];
        [s.or(low, s.mask(third[0], 4)), s.or(high, s.mask(third[1], 4))]
    }
}

/// Scale of group `group`: four bits in the first two words of scales, two in the third.
#[inline(always)]
fn scale<S: PanelSimd>(s: S, words: [S::Words; 3], group: usize) -> F32<S> {
    let low = s.bits(words[group % 8 / 4], 8 * (group % 4) + 4 * (group / 8), 4);
    let top = s.bits(words[2], 8 * (group % 4) + 2 * (group / 4), 2);
    s.sub(s.to_floats(s.or(low, s.shift_left(top, 4))), s.splat(32.0))
}

impl Format for Q3K {
    const N_WORDS: usize = 27;
    const UNITS: usize = 8;
    const SHARING: usize = 2;

    #[inline(always)]
    unsafe fn unpack<S: PanelSimd>(s: S, block: Block<'_>, sink: &mut impl Sink<S>) {
        let factor = block.lone_factor(s);
        block.ask_for(3..11);
        let packed = [block.word(s, 0), block.word(s, 1), block.word(s, 2)];
        let mut scales = [s.splat(0.0); 16];
        for (group, to) in scales.iter_mut().enumerate() {
            *to = s.mul(factor, scale(s, packed, group));
        }
        for pair in 0..4 {
            let u = 2 * pair;
            for part in 0..2 {
                let codes = ThreeBits(TwoBits { block, first: 11, pair });
                let of = Codes {
                    units: [u, u + 1],
                    groups: 4 * part..4 * part + 4,
                    offset: 4,
                    scales: [scales[2 * u + part], scales[2 * u + 2 + part]],
                    mins: None,
                };
                // SAFETY: `u + 1 < 8`; there are eight units by contract.
                unsafe { sink.take::<2, 3>(s, of, &codes) };
            }
        }
    }
}
