//! Panels times many rows on matrix tiles (AMX).
//!
//! Weights become bf16 values, some hundred of 32 rows at a time, in the order that tiles want them;
//! inputs do so once for all weights. Products of integers on tiles would have to leave them after each
//! 32 values, to be scaled: that costs more than bf16 products, which are half as fast.

use std::marker::PhantomData;
use std::ops::Range;

use bytemuck::Zeroable;
use stonechat_compute::cpu::MatRef;
use stonechat_compute::simd::{Avx512Vnni, NullaryFnOnce, Simd, Tile, TileSums, Tiles};
use stonechat_compute::with_scratch;

use super::blocks::UnitOfBlock;
use super::format::match_format;
use super::kernel::{Block, Codes, Format, Groups, Sink};
use super::simd::PanelSimd;
use super::{PANEL_ROWS, Task};

/// Values that a tile has of a row.
const STEP: usize = 32;
/// Steps of weights that are unpacked at a time, 128 KB of the second-level cache for 32 rows: 16 steps,
/// which the first level holds, load and store sums more often and were a tenth slower.
const CHUNK_STEPS: usize = 64;
/// Rows of a tile.
const TILE_ROWS: usize = 16;
/// Panels of a task, for which the inputs are read once from the last-level cache.
const MAX_PANELS: usize = 4;

/// How many panels a task takes, `most` if each thread is to have several tasks; in pairs.
pub(super) fn panels_per_task(most: usize) -> usize {
    (most / 2 * 2).clamp(2, MAX_PANELS)
}

/// Inputs rounded to bf16; zeros fill up the rows to a multiple of 32.
impl UnitOfBlock for Tile {
    const ROWS: usize = TILE_ROWS;
    const BLOCKS: usize = 2;
    const PIECE: usize = 16;

    #[inline(always)]
    fn fill(tiles: &mut [Self], x: MatRef<'_>, rows: Range<usize>, from: usize) {
        // Tile by tile: rows one after the other would come back to the lines of every tile.
        for (i, tile) in tiles.iter_mut().enumerate() {
            for r in 0..TILE_ROWS {
                let mut rounded = [0; STEP];
                if r < rows.len() {
                    let values = &x.row(rows.start + r)[(from + i) * STEP..][..STEP];
                    for i in 0..STEP {
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
    // Rounding could carry a NaN over to zero.
    (if x.is_nan() { 0x7fc0 } else { rounded }) as u16
}

/// Adds products on tiles; see [`Tiles::accumulate`].
pub(super) trait TileUnit {
    /// `sums[i][j] += Σ inputs[i] · weights[j]`.
    fn accumulate(&self, sums: &mut TileSums, inputs: [&[Tile]; 2], weights: &[[Tile; 2]]);
}

impl TileUnit for Tiles {
    fn accumulate(&self, sums: &mut TileSums, inputs: [&[Tile]; 2], weights: &[[Tile; 2]]) {
        Self::accumulate(self, sums, inputs, weights);
    }
}

impl Task<'_> {
    /// Multiplies all rows of the inputs, which are on tiles.
    pub(super) fn run_on_tiles<T: TileUnit>(&self, s: Avx512Vnni, tiles: &T) {
        let n_pairs = self.panels.len().div_ceil(2);
        let m_pairs = self.x.rows().div_ceil(2 * TILE_ROWS);
        let n_sums = n_pairs * m_pairs * (size_of::<TileSums>() / size_of::<f32>());
        let n_weights = CHUNK_STEPS * 2 * (size_of::<Tile>() / size_of::<f32>());
        // Only what is called inside `vectorize` has the instructions inline.
        with_scratch(n_sums + n_weights, |scratch| {
            let (sums, weights) = scratch.split_at_mut(n_sums);
            let sums = bytemuck::cast_slice_mut(sums);
            let weights = bytemuck::cast_slice_mut(weights);
            match_format!(self.w.dtype(), F => s.vectorize(OnTiles::<T, F> {
                task: self, s, tiles, m_pairs, sums, weights, format: PhantomData,
            }));
        });
    }
}

struct OnTiles<'a, T, F> {
    task: &'a Task<'a>,
    s: Avx512Vnni,
    tiles: &'a T,
    /// Pairs of tiles that the inputs' rows fill.
    m_pairs: usize,
    /// `m_pairs` of each pair of panels.
    sums: &'a mut [TileSums],
    /// The chunk at hand of a pair of panels.
    weights: &'a mut [[Tile; 2]],
    format: PhantomData<F>,
}

impl<T: TileUnit, F: Format> NullaryFnOnce for OnTiles<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { task, s, tiles, m_pairs, sums, weights, .. } = self;
        let x = task.x.tiles();
        sums.fill(TileSums::zeroed());
        for first in (0..x.n_units()).step_by(CHUNK_STEPS) {
            let steps = first..x.n_units().min(first + CHUNK_STEPS);
            let weights = &mut weights[..steps.len()];
            for (pair, sums) in sums.chunks_exact_mut(m_pairs).enumerate() {
                unpack::<F>(task, s, pair, first, weights);
                for (m, sums) in sums.iter_mut().enumerate() {
                    let pair = [2 * m, 2 * m + 1].map(|block| x.block(block, steps.clone()));
                    tiles.accumulate(sums, pair, weights);
                }
            }
        }
        for (i, sums) in sums.iter().enumerate() {
            finish(task, s, i / m_pairs, i % m_pairs, sums);
        }
    }
}

/// Some values, from step `first`, of the rows of two panels.
#[inline(always)]
fn unpack<F: Format>(
    task: &Task<'_>,
    s: Avx512Vnni,
    pair: usize,
    first: usize,
    out: &mut [[Tile; 2]],
) {
    for which in 0..2 {
        let panel = task.panels.start + 2 * pair + which;
        if panel == task.panels.end {
            out.iter_mut().for_each(|step| step[which] = Tile::zeroed());
            continue;
        }
        let panel = task.w.panel(panel);
        for (i, steps) in out.chunks_exact_mut(F::UNITS).enumerate() {
            // Most of what is asked for is the next chunk's, and arrives while tiles are multiplied: 16 cores of Sapphire
            // Rapids read prompts 2 % faster (14 rounds in turns).
            let block = Block::of::<F>(panel, first / F::UNITS + i, 0).asking(true);
            // SAFETY: nothing is asked of the sink's callers.
            unsafe { F::unpack(s, block, &mut Weights { steps, which }) };
        }
    }
}

/// Writes the sums of a pair of panels and a pair of tiles of inputs.
#[inline(always)]
fn finish(task: &Task<'_>, s: Avx512Vnni, pair: usize, m_pair: usize, sums: &TileSums) {
    let panel = task.panels.start + 2 * pair;
    let all = panel * PANEL_ROWS..(panel + 2).min(task.panels.end) * PANEL_ROWS;
    let wanted = all.start.max(task.rows.start)..all.end.min(task.rows.end);
    let lanes = wanted.start - all.start..wanted.end - all.start;
    let cols = wanted.start - task.rows.start..wanted.end - task.rows.start;
    let first = m_pair * 2 * TILE_ROWS;
    for (m, sums) in (first..task.x.rows()).zip(&sums.0) {
        // SAFETY: `m` is a row of `x`, and so of the output, which `matmul_packed` checked; the columns
        // are of this task alone.
        let out = unsafe { task.out.span(m, cols.start, cols.len()) };
        task.epilogue.finish(s, &sums[lanes.clone()], cols.start, out);
    }
}

/// Writes values as bf16, in pairs, to the tiles of the units of a block. Nothing is asked of its callers.
struct Weights<'a> {
    steps: &'a mut [[Tile; 2]],
    which: usize,
}

impl Sink<Avx512Vnni> for Weights<'_> {
    #[inline(always)]
    unsafe fn take<const N: usize, const BITS: usize>(
        &mut self,
        s: Avx512Vnni,
        of: Codes<Avx512Vnni, N>,
        codes: &impl Groups<Avx512Vnni, N>,
    ) {
        let f = s.avx512f;
        let offset = s.splat(-of.offset as f32);
        for g in of.groups.clone() {
            let codes = codes.group(s, g);
            for n in 0..N {
                let min = of.mins.map_or(s.splat(0.0), |mins| mins[n]);
                let min = s.mul_add(of.scales[n], offset, min);
                for pair in 0..2 {
                    let mut rounded = [f._mm512_setzero_si512(); 2];
                    for i in 0..2 {
                        let code = s.to_floats(s.bits(codes[n], 16 * pair + 8 * i, 8));
                        let value = s.mul_add(of.scales[n], code, min);
                        // Half a step of bf16 is added and the rest dropped.
                        let half = f._mm512_set1_epi32(0x8000);
                        rounded[i] = f._mm512_add_epi32(bytemuck::cast(value), half);
                    }
                    let low = f._mm512_srli_epi32::<16>(rounded[0]);
                    let high = f._mm512_and_si512(rounded[1], f._mm512_set1_epi32(-0x1_0000));
                    let row = bytemuck::cast(f._mm512_or_si512(low, high));
                    self.steps[of.units[n]][self.which].0[2 * g + pair] = row;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
