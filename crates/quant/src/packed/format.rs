//! How each format unpacks.

mod block256;
mod block32;
mod levels;
mod two_bits;

pub(super) use block32::{Nibbles32, Q8_0};
pub(super) use block256::{NibblesK, Q6K};

pub(super) use levels::{Iq4Nl, Iq4Xs, Mxfp4};
pub(super) use two_bits::{Q2K, Q3K};

use super::kernel::{Block, Groups};
use super::simd::PanelSimd;

/// Evaluates `$body` with `$format` the format of weights of a type.
macro_rules! match_format {
    ($dtype:expr, $format:ident => $body:expr) => {{
        use stonechat_compute::DType;

        use $crate::packed::format as f;
        match $dtype {
            DType::Q4_0 => match_format!(@ f::Nibbles32<false, false>, $format => $body),
            DType::Q4_1 => match_format!(@ f::Nibbles32<true, false>, $format => $body),
            DType::Q5_0 => match_format!(@ f::Nibbles32<false, true>, $format => $body),
            DType::Q5_1 => match_format!(@ f::Nibbles32<true, true>, $format => $body),
            DType::Q8_0 => match_format!(@ f::Q8_0, $format => $body),
            DType::Iq4Nl => match_format!(@ f::Iq4Nl, $format => $body),
            DType::Mxfp4 => match_format!(@ f::Mxfp4, $format => $body),
            DType::Q2K => match_format!(@ f::Q2K, $format => $body),
            DType::Q3K => match_format!(@ f::Q3K, $format => $body),
            DType::Q4K => match_format!(@ f::NibblesK<false>, $format => $body),
            DType::Q5K => match_format!(@ f::NibblesK<true>, $format => $body),
            DType::Q6K => match_format!(@ f::Q6K, $format => $body),
            DType::Iq4Xs => match_format!(@ f::Iq4Xs, $format => $body),
            other => unreachable!("{other} has no panels"),
        }
    }};
    (@ $type:ty, $format:ident => $body:expr) => {{
        type $format = $type;
        $body
    }};
}
pub(super) use match_format;

/// Nibbles of one unit, in four words from `first` on: the low ones are the first groups.
struct Nibbles<'a> {
    block: Block<'a>,
    first: usize,
}

impl<S: PanelSimd> Groups<S, 1> for Nibbles<'_> {
    #[inline(always)]
    fn group(&self, s: S, g: usize) -> [S::Words; 1] {
        [nibbles(s, self.block.word(s, self.first + g % 4), g >= 4)]
    }
}

/// The low nibbles of every byte, or the high ones.
#[inline(always)]
fn nibbles<S: PanelSimd>(s: S, x: S::Words, high: bool) -> S::Words {
    s.mask(if high { s.shift_right(x, 4) } else { x }, 15)
}
