//! Activations as AMX tiles of bf16: 16 rows of 32 columns, row blocks in pairs, as `tdpbf16ps` takes its first operand.

use std::ops::Range;

use stonechat_compute::cpu::MatRef;
use stonechat_compute::simd::Tile;

use super::tiled::RowTile;

/// Rows of a tile.
pub(crate) const TILE_ROWS: usize = 16;
/// bf16 values of a tile's row.
pub(crate) const TILE_K: usize = 32;

/// Values rounded to bf16. Zero rows fill up the last pair of row blocks.
impl RowTile for Tile {
    const ROWS: usize = TILE_ROWS;
    const ROW_BLOCKS_MULTIPLE: usize = 2;
    const TASK_TILES: usize = 16;

    #[inline(always)]
    fn fill(tiles: &mut [Self], x: MatRef<'_>, rows: Range<usize>, first: usize) {
        // Tile by tile, so that each line of a tile is written once while it is in the first-level cache.
        for (i, tile) in tiles.iter_mut().enumerate() {
            for r in 0..TILE_ROWS {
                let mut rounded = [0; TILE_K];
                if r < rows.len() {
                    let values = &x.row(rows.start + r)[(first + i) * TILE_K..][..TILE_K];
                    for i in 0..TILE_K {
                        rounded[i] = bf16_bits(values[i]);
                    }
                }
                tile.0[r] = rounded;
            }
        }
    }
}

/// The nearest bf16, ties to even.
#[inline(always)]
fn bf16_bits(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    // A carry out of the mantissa could turn a NaN into zero.
    (if x.is_nan() { 0x7fc0 } else { rounded }) as u16
}
