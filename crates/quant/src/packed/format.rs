//! How each format unpacks.

mod block256;
mod block32;
mod levels;
mod two_bits;

pub(super) use block32::{Nibbles32, Q8_0};
pub(super) use block256::{NibblesK, Q6K};

pub(super) use levels::{Iq4Nl, Iq4Xs, Mxfp4};
pub(super) use two_bits::{Q2K, Q3K};

use super::simd::PanelSimd;

/// The low nibbles of every byte, or the high ones.
#[inline(always)]
fn nibbles<S: PanelSimd>(s: S, x: S::Words, high: bool) -> S::Words {
    s.mask(if high { s.shift_right(x, 4) } else { x }, 15)
}
