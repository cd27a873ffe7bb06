//! Formats of 32 values with one scale.

use super::Nibbles;
use crate::packed::kernel::{Block, Codes, Format, Groups, Sink};
use crate::packed::simd::PanelSimd;

/// `Q4_0` and `Q4_1`, or with a fifth bit `Q5_0` and `Q5_1`: those with a min have it beside the scale in
/// their first word; the others subtract half of the range.
pub(in crate::packed) struct Nibbles32<const HAS_MIN: bool, const FIFTH_BIT: bool>;

impl<const HAS_MIN: bool, const FIFTH_BIT: bool> Format for Nibbles32<HAS_MIN, FIFTH_BIT> {
    const N_WORDS: usize = 4 + HAS_MIN as usize + FIFTH_BIT as usize;
    const UNITS: usize = 1;
    const SHARING: usize = if HAS_MIN { 0 } else { 2 };

    #[inline(always)]
    unsafe fn unpack<S: PanelSimd>(s: S, block: Block<'_>, sink: &mut impl Sink<S>) {
        let (offset, scale, mins) = if HAS_MIN {
            let [scale, min] = block.factor_pair(s, 0);
            (0, scale, Some([min]))
        } else {
            (if FIFTH_BIT { 16 } else { 8 }, block.lone_factor(s), None)
        };
        let of = Codes { units: [0], groups: 0..8, offset, scales: [scale], mins };
        let nibbles = Nibbles { block, first: Self::N_WORDS - 4 };
        // SAFETY: the caller vouches for the one unit.
        unsafe {
            if FIFTH_BIT {
                let fifth = block.word(s, usize::from(HAS_MIN));
                sink.take::<1, 5>(s, of, &FiveBits::<S> { nibbles, fifth });
            } else {
                sink.take::<1, 4>(s, of, &nibbles);
            }
        }
    }
}

/// Nibbles with a fifth bit: those of group `g` are bits `g` of the bytes.
struct FiveBits<'a, S: PanelSimd> {
    nibbles: Nibbles<'a>,
    fifth: S::Words,
}

impl<S: PanelSimd> Groups<S, 1> for FiveBits<'_, S> {
    #[inline(always)]
    fn group(&self, s: S, g: usize) -> [S::Words; 1] {
        let [nibbles] = self.nibbles.group(s, g);
        let bit =
            if g < 4 { s.shift_left(self.fifth, 4 - g) } else { s.shift_right(self.fifth, g - 4) };
        [s.or(nibbles, s.mask(bit, 16))]
    }
}

/// `Q8_0`, its values 128 larger.
pub(in crate::packed) struct Q8_0;

impl Format for Q8_0 {
    const N_WORDS: usize = 8;
    const UNITS: usize = 1;
    const SHARING: usize = 2;
    #[cfg(target_arch = "x86_64")]
    const ARE_CODES: bool = true;

    #[inline(always)]
    unsafe fn unpack<S: PanelSimd>(s: S, block: Block<'_>, sink: &mut impl Sink<S>) {
        let offset = i32::from(S::BYTE_OFFSET);
        let scales = [block.lone_factor(s)];
        let of = Codes { units: [0], groups: 0..8, offset, scales, mins: None };
        // SAFETY: the one unit is the caller's promise.
        unsafe { sink.take::<1, 8>(s, of, &Bytes(block)) };
    }
}

struct Bytes<'a>(Block<'a>);

impl<S: PanelSimd> Groups<S, 1> for Bytes<'_> {
    #[inline(always)]
    fn group(&self, s: S, g: usize) -> [S::Words; 1] {
        [s.unbias(self.0.word(s, g))]
    }
}
