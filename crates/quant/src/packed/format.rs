//! Unpacking of each format's panels: from a [`PanelBlock`] to quants, scales and mins in vectors of rows.
//!
//! A *group* is 32 or 16 consecutive values of a row with one scale; a *quad* is four consecutive values, one 32-bit lane
//! per row: the operand of a 4-way 8-bit dot product. A q8 block of activations has 8 quads.
//!
//! ```text
//! for each weight block of 16 rows:            F::unpack
//!     for N groups that share vectors:
//!         scales, mins: f32 per row
//!         for each quad of the groups:         LoadQuants::load_quants
//!             4 x u8 per row
//!         -> Accumulator::accumulate           GEMV: dot products; GEMM, AMX: store unpacked
//! ```

mod block256;
mod block32;
mod levels;
mod two_bits;

use std::ops::Range;

pub(super) use block32::*;
pub(super) use block256::*;
pub(super) use levels::*;
use stonechat_compute::simd::{F32, Int8};
pub(super) use two_bits::*;

use super::block::PanelBlock;
use super::layout::BlockOffset;
use super::panel::U32x16;

/// A format's panel blocks.
pub(super) trait Format: 'static {
    /// [`U32x16`] vectors of a block, without a vector of scales.
    const BLOCK_VECTORS: usize;
    /// Q8 blocks of activations that a block is multiplied with: 1 or 8.
    const QBLOCKS: usize;
    /// Blocks whose scales share a vector, which precedes them; 0 if scales are in the block's own vectors.
    const BLOCKS_PER_SCALE_VECTOR: usize = 0;
    /// Whether a block's vectors are the quants of its one group, quad by quad, as bytes offset by 128.
    const IS_PLAIN_BYTES: bool = false;

    /// Block `index` of a panel.
    #[inline(always)]
    fn block(panel: &[U32x16], index: usize, part: usize) -> PanelBlock<'_> {
        PanelBlock::new(panel, Self::offset(index), Self::BLOCK_VECTORS, part)
    }

    /// Position of block `index` in a panel.
    #[inline(always)]
    fn offset(index: usize) -> BlockOffset {
        BlockOffset::new(Self::BLOCK_VECTORS, Self::BLOCKS_PER_SCALE_VECTOR, index)
    }

    /// Gives `sink` all groups of a block.
    fn unpack<S: Int8>(s: S, block: PanelBlock<'_>, sink: &mut impl Accumulator<S>);
}

/// `N` groups of different q8 blocks that share vectors of a panel: `w = scale * (q - offset) + min`.
pub(super) struct QuantGroups<S: Int8, const N: usize> {
    /// The q8 block of each group, below [`Format::QBLOCKS`].
    pub(super) qblocks: [usize; N],
    /// Quads of the groups in their q8 blocks: `0..8`, `0..4` or `4..8`.
    pub(super) quads: Range<usize>,
    pub(super) offset: i32,
    pub(super) scales: [F32<S>; N],
    pub(super) mins: Option<[F32<S>; N]>,
}

/// Loads the quants of `N` groups. A trait, since a closure that is not inlined leaves the feature context, and every
/// intrinsic in it becomes a call.
pub(super) trait LoadQuants<S: Int8, const N: usize> {
    /// Quad `quad` of each row, of each group.
    fn load_quants(&self, s: S, quad: usize) -> [S::U32s; N];
}

/// Consumer of a block's groups.
pub(super) trait Accumulator<S: Int8> {
    /// Takes `N` groups of quants of `BITS` bits: 8 for bytes offset by [`Int8::BYTE_OFFSET`], else unsigned.
    fn accumulate<const N: usize, const BITS: usize>(
        &mut self,
        s: S,
        groups: QuantGroups<S, N>,
        quants: &impl LoadQuants<S, N>,
    );
}

/// Nibbles of one q8 block in four vectors from `first` on: quads 0..4 in the low nibbles, 4..8 in the high ones.
struct Nibbles<'a> {
    block: PanelBlock<'a>,
    first: usize,
}

impl<S: Int8> LoadQuants<S, 1> for Nibbles<'_> {
    #[inline(always)]
    fn load_quants(&self, s: S, quad: usize) -> [S::U32s; 1] {
        [nibbles(s, self.block.load(s, self.first + quad % 4), quad >= 4)]
    }
}

/// The low nibble of every byte, or the high one.
#[inline(always)]
fn nibbles<S: Int8>(s: S, x: S::U32s, high: bool) -> S::U32s {
    s.mask(if high { s.shift_right(x, 4) } else { x }, 15)
}
