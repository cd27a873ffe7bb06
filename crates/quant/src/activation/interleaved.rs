//! Interleaved q8 activations, for GEMM: the q8 blocks of `MR` rows side by side.
//!
//! ```text
//! InterleavedQBlocks<MR>, 32 columns of rows r .. r + MR:
//!   quants               [MR] x 32 i8      q
//!   scales               [MR] f32          d
//!   scaled_sums          [MR] f32          d * sum(q)
//!   offsets              [MR] i32          -128 * sum(q)
//!   offsets_of_halves    [2][MR] i32       -128 * sum(q) of each 16
//! ```

use std::ops::Range;

use bytemuck::Zeroable;
use stonechat_compute::cpu::MatRef;

use super::qblock::{QBLOCK_LEN, QBlock, quantize_qblock};
use super::tiled::RowTile;

/// Offset of unsigned weight bytes, whose correction is stored with the activations: `sum((w + 128) * q) - 128 * sum(q)`.
pub(crate) const OFFSET: i32 = 128;

/// The q8 blocks of `MR` rows, at one address for the microkernel.
#[derive(Clone, Copy, Debug, Zeroable)]
#[repr(C, align(64))]
pub(crate) struct InterleavedQBlocks<const MR: usize> {
    pub(crate) quants: [QBlock; MR],
    pub(crate) scales: [f32; MR],
    /// `d * sum(q)`.
    pub(crate) scaled_sums: [f32; MR],
    /// `-OFFSET * sum(q)`.
    pub(crate) offsets: [i32; MR],
    /// `-OFFSET * sum(q)` of each 16 quants.
    pub(crate) offsets_of_halves: [[i32; MR]; 2],
}

impl<const MR: usize> RowTile for InterleavedQBlocks<MR> {
    const ROWS: usize = MR;
    const ROW_BLOCKS_MULTIPLE: usize = 1;
    const TASK_TILES: usize = 64;

    #[inline(always)]
    fn fill(tiles: &mut [Self], x: MatRef<'_>, rows: Range<usize>, first: usize) {
        for (m, r) in rows.enumerate() {
            let values = x.row(r).as_chunks::<QBLOCK_LEN>().0;
            for (to, values) in tiles.iter_mut().zip(&values[first..]) {
                let (scale, quants, sums) = quantize_qblock(values);
                to.quants[m] = quants;
                to.scales[m] = scale;
                to.scaled_sums[m] = scale * (sums[0] + sums[1]) as f32;
                to.offsets[m] = -OFFSET * (sums[0] + sums[1]);
                to.offsets_of_halves[0][m] = -OFFSET * sums[0];
                to.offsets_of_halves[1][m] = -OFFSET * sums[1];
            }
        }
    }
}
