//! GEMM (prefill) on AMX: panels times bf16 tiles of activations.
//!
//! ```text
//! for each chunk of 64 q8 blocks of K:                   128 KB of unpacked weights
//!     for each pair of panels (32 weight rows):
//!         w[64][2] = unpacked to bf16 tiles              Format::unpack, TileWriter
//!         for each 32 rows of x:
//!             sums[2][2] += x[2][64] * w[64][2]          tdpbf16ps, 4 of 8 tile registers are sums
//! y = epilogue(sums)
//!
//! weight tile, 32 columns of K x 16 weight rows:         activation tile, 16 rows x 32 columns of K:
//!     row i: w[0][2i] w[0][2i+1] w[1][2i] ...               row m: x[m][0] x[m][1] ... x[m][31]
//! ```
//!
//! Not `tdpbusd`: sums of integers would leave the tiles after each 32 values, to be scaled. That costs more than bf16
//! products, which are half as fast.

use std::marker::PhantomData;

use bytemuck::Zeroable;
use stonechat_compute::simd::{
    Avx512Vnni, Int8, NullaryFnOnce, Simd, Tile, TileSums, Tiles, Token,
};
use stonechat_compute::with_scratch;

use super::format::{Accumulator, Format, LoadQuants, QuantGroups};
use super::panel::PANEL_ROWS;
use super::task::PanelTask;
use crate::activation::amx_bf16::TILE_ROWS;

/// Q8 blocks of K that are unpacked at a time: 128 KB of bf16 for 32 weight rows, of the second-level cache. A chunk for
/// the first level would load and store the sums four times as often.
const CHUNK_QBLOCKS: usize = 64;
/// Panels of a task, for which the activations are read once from the last-level cache.
const MAX_PANELS: usize = 4;

/// Panels of a task, in pairs: at most `limit`, the number that gives each thread several tasks.
pub(super) fn panels_per_task(limit: usize) -> usize {
    (limit / 2 * 2).clamp(2, MAX_PANELS)
}

/// Tile products, by AMX or in plain code; see [`Tiles::accumulate`].
pub(super) trait TileUnit {
    /// `sums[i][j] += Σ inputs[i] · weights[j]`.
    fn accumulate(&self, sums: &mut TileSums, inputs: [&[Tile]; 2], weights: &[[Tile; 2]]);
}

impl TileUnit for Tiles {
    fn accumulate(&self, sums: &mut TileSums, inputs: [&[Tile]; 2], weights: &[[Tile; 2]]) {
        Self::accumulate(self, sums, inputs, weights);
    }
}

impl PanelTask<'_> {
    /// Multiplies all rows of the activations, which are bf16 tiles.
    pub(super) fn amx_gemm<T: TileUnit, F: Format>(&self, s: Avx512Vnni, tiles: &T) {
        let n_pairs = self.panels.len().div_ceil(2);
        let m_pairs = self.x.rows().div_ceil(2 * TILE_ROWS);
        let n_sums = n_pairs * m_pairs * (size_of::<TileSums>() / size_of::<f32>());
        let n_weights = CHUNK_QBLOCKS * 2 * (size_of::<Tile>() / size_of::<f32>());
        // Intrinsics are inlined only inside `vectorize`.
        with_scratch(n_sums + n_weights, |scratch| {
            let (sums, weights) = scratch.split_at_mut(n_sums);
            let sums = bytemuck::cast_slice_mut(sums);
            let weights = bytemuck::cast_slice_mut(weights);
            s.vectorize(AmxGemm::<T, F> {
                task: self,
                s,
                tiles,
                m_pairs,
                sums,
                weights,
                format: PhantomData,
            });
        });
    }
}

struct AmxGemm<'a, T, F> {
    task: &'a PanelTask<'a>,
    s: Avx512Vnni,
    tiles: &'a T,
    /// Pairs of tiles that the rows of the activations fill.
    m_pairs: usize,
    /// `[pairs of panels][m_pairs]`.
    sums: &'a mut [TileSums],
    /// `[CHUNK_QBLOCKS]`, of the current pair of panels.
    weights: &'a mut [[Tile; 2]],
    format: PhantomData<F>,
}

impl<T: TileUnit, F: Format> NullaryFnOnce for AmxGemm<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { task, s, tiles, m_pairs, sums, weights, .. } = self;
        let x = &task.x.amx_bf16;
        sums.fill(TileSums::zeroed());
        for first in (0..x.n_qblocks()).step_by(CHUNK_QBLOCKS) {
            let chunk = first..x.n_qblocks().min(first + CHUNK_QBLOCKS);
            let weights = &mut weights[..chunk.len()];
            for (pair, sums) in sums.chunks_exact_mut(m_pairs).enumerate() {
                unpack_panels::<F>(task, s, pair, first, weights);
                for (m, sums) in sums.iter_mut().enumerate() {
                    let inputs = [2 * m, 2 * m + 1].map(|block| x.tiles(block, chunk.clone()));
                    tiles.accumulate(sums, inputs, weights);
                }
            }
        }
        for (i, sums) in sums.iter().enumerate() {
            store_sums(task, s, i / m_pairs, i % m_pairs, sums);
        }
    }
}

/// Unpacks the weights of a pair of panels from q8 block `first` on to bf16 tiles. A missing second panel gives
/// zeros.
#[inline(always)]
fn unpack_panels<F: Format>(
    task: &PanelTask<'_>,
    s: Avx512Vnni,
    pair: usize,
    first: usize,
    out: &mut [[Tile; 2]],
) {
    for which in 0..2 {
        let panel = task.panels.start + 2 * pair + which;
        if panel == task.panels.end {
            out.iter_mut().for_each(|tiles| tiles[which] = Tile::zeroed());
            continue;
        }
        let panel = task.w.panel(panel);
        for (i, tiles) in out.chunks_exact_mut(F::QBLOCKS).enumerate() {
            // Most prefetched lines are the next chunk's, and arrive while tiles are multiplied.
            let block = F::block(panel, first / F::QBLOCKS + i, 0).with_prefetch(true);
            F::unpack(s, block, &mut TileWriter { tiles, which });
        }
    }
}

/// Stores the sums of a pair of panels and 32 rows of activations.
#[inline(always)]
fn store_sums(task: &PanelTask<'_>, s: Avx512Vnni, pair: usize, m_pair: usize, sums: &TileSums) {
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

/// Writes `bf16(scale * q + (min - scale * offset))` to the tiles of a weight block, one for each q8 block.
struct TileWriter<'a> {
    tiles: &'a mut [[Tile; 2]],
    /// Index of the panel in its pair, 0 or 1.
    which: usize,
}

impl Accumulator<Avx512Vnni> for TileWriter<'_> {
    #[inline(always)]
    fn accumulate<const N: usize, const BITS: usize>(
        &mut self,
        s: Avx512Vnni,
        groups: QuantGroups<Avx512Vnni, N>,
        quants: &impl LoadQuants<Avx512Vnni, N>,
    ) {
        let f = s.avx512f;
        let offset = s.splat(-groups.offset as f32);
        for quad in groups.quads.clone() {
            let q = quants.load_quants(s, quad);
            for n in 0..N {
                let min = groups.mins.map_or(s.splat(0.0), |mins| mins[n]);
                let min = s.mul_add(groups.scales[n], offset, min);
                for pair in 0..2 {
                    let mut rounded = [f._mm512_setzero_si512(); 2];
                    for i in 0..2 {
                        let q = s.to_floats(s.bits(q[n], 16 * pair + 8 * i, 8));
                        let value = s.mul_add(groups.scales[n], q, min);
                        // Adding half a step of bf16 and dropping the rest rounds to nearest, ties away from zero.
                        let half = f._mm512_set1_epi32(0x8000);
                        rounded[i] = f._mm512_add_epi32(bytemuck::cast(value), half);
                    }
                    let low = f._mm512_srli_epi32::<16>(rounded[0]);
                    let high = f._mm512_and_si512(rounded[1], f._mm512_set1_epi32(-0x1_0000));
                    let row = bytemuck::cast(f._mm512_or_si512(low, high));
                    self.tiles[groups.qblocks[n]][self.which].0[2 * quad + pair] = row;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
