//! How each format unpacks.

mod block256;
mod block32;

pub(super) use block32::{Nibbles32, Q8_0};
pub(super) use block256::{NibblesK, Q6K};

use super::simd::PanelSimd;

/// The low nibbles of every byte, or the high ones.
#[inline(always)]
fn nibbles<S: PanelSimd>(s: S, x: S::Words, high: bool) -> S::Words {
    s.mask(if high { s.shift_right(x, 4) } else { x }, 15)
}
