//! GEMM (prefill): panels times many interleaved rows of q8 activations in integers.
//!
//! ```text
//! for each 240 rows of x:                                MAX_ROWS: their chunk and sums stay in the second-level cache
//!     for each chunk of 16 q8 blocks of K:               CHUNK_QBLOCKS
//!         for each NR = 2 vectors of weight rows:        2 panels on 512 bits, one on 256, half of one on 128
//!             unpack the chunk to bytes, scales, mins    chunk.rs, first-level cache
//!             for each MR rows of x:                     microkernel.rs, sums in registers
//!                 sums[MR][NR] += x[MR][chunk] * w[chunk][NR]
//!     y = epilogue(sums)                                 store.rs
//! ```
//!
//! GEMV unpacks quants while it multiplies and loads the activations of each product anew, so that loads are its bound.
//! Here weights are unpacked once for all rows, and an activation that is loaded meets two vectors.
//!
//! Registers of the microkernel, `MR x NR`:
//!
//! | tier | integer sums | float sums | others | MR |
//! |---|---|---|---|---|
//! | AVX-512 VNNI, 32 registers | 6 * 2 | 6 * 2 | 2 weights, broadcasts from memory | 6 |
//! | AVX-VNNI, 16 registers | 6 * 2 | in memory | 2 weights, broadcast | 6 |
//! | NEON dotprod, 32 registers | 6 * 2 | 6 * 2 | 2 weights, 6 activations | 6 |
//! | NEON, 32 registers | 6 * 2 | 6 * 2 | 2 weights, 4 byte orders, activations | 6 |
//! | AVX2, SSE4.2, 16 registers | 4 * 2 | in memory | 2 weights, magnitudes, ones, products, broadcast | 4 |
//! | wasm, 16 registers of x86-64 | 4 * 2 | in memory | even and odd bytes of 2 weights and a broadcast, product | 4 |
//! | wasm relaxed, 16 registers | 4 * 2 | in memory | 2 weights, 2 halves, 2 rests, broadcast, product | 4 |
//!
//! Every sum has the same terms in the same order as GEMV's: a row's results do not depend on the number of rows.

mod chunk;
mod microkernel;
mod store;

use std::marker::PhantomData;
use std::ops::Range;

use stonechat_compute::simd::Int8;
use stonechat_compute::with_scratch;

use self::chunk::{
    CHUNK_QBLOCKS, KChunk, NR, RowSums, UnpackChunk, chunk_vectors, chunk_words, nr_rows,
    reads_panel_directly,
};
use self::microkernel::Microkernel;
use self::store::StoreSums;
use super::format::Format;
use super::panel::PANEL_ROWS;
use super::task::PanelTask;
use crate::activation::interleaved::InterleavedQBlocks;
use crate::activation::tiled::TiledRows;

/// Panels of a task, for which the activations of a chunk are read once from the last-level cache.
const MAX_PANELS: usize = 8;
/// Rows of activations, a multiple of MR, whose chunk and whose sums with a task's panels stay in the second-level
/// cache. For more rows, panels are unpacked again.
const MAX_ROWS: usize = 240;

/// Panels of a task, in pairs: at most `limit`, the number that gives each thread several tasks.
pub(super) fn panels_per_task(limit: usize) -> usize {
    (limit / NR * NR).clamp(NR, MAX_PANELS)
}

impl PanelTask<'_> {
    /// Multiplies all rows of the activations, which are interleaved by `MR`.
    pub(super) fn gemm<S: Int8, F: Format, const MR: usize>(
        &self,
        s: S,
        x: &TiledRows<InterleavedQBlocks<MR>>,
    ) {
        const { assert!(MAX_ROWS.is_multiple_of(MR)) };
        let n_rows = self.x.rows();
        let n_tiles = (self.panels.len() * PANEL_ROWS).div_ceil(nr_rows::<S>());
        let padded = n_rows.min(MAX_ROWS).next_multiple_of(MR);
        let n_sums = n_tiles * padded * nr_rows::<S>();
        with_scratch(n_sums + KChunk::<S>::LEN, |scratch| {
            let (chunk, sums) = scratch.split_at_mut(KChunk::<S>::LEN);
            let mut chunk = KChunk::<S>::new(chunk);
            let sums: &mut [RowSums<S>] = bytemuck::cast_slice_mut(sums);
            for from in (0..n_rows).step_by(MAX_ROWS) {
                let rows = from..n_rows.min(from + MAX_ROWS);
                // The last row block of the activations is whole; sums of rows beyond `n_rows` are not stored.
                let padded = rows.len().next_multiple_of(MR);
                let sums = &mut sums[..n_tiles * padded];
                // The first chunk fills them, if there is one.
                if self.w.blocks_per_row == 0 {
                    sums.fill([s.splat(0.0); NR]);
                }
                self.accumulate_chunks::<S, F, MR>(s, (x, rows.clone()), &mut chunk, sums);
                s.vectorize(StoreSums { task: self, s, rows, padded, sums });
            }
        });
    }

    /// Adds the products of all panels with `rows` to `sums`, `[tiles][padded rows]`, where a tile is [`NR`] vectors.
    fn accumulate_chunks<S: Int8, F: Format, const MR: usize>(
        &self,
        s: S,
        (x, rows): (&TiledRows<InterleavedQBlocks<MR>>, Range<usize>),
        chunk: &mut KChunk<'_, S>,
        sums: &mut [RowSums<S>],
    ) {
        let n_cols = const { nr_rows::<S>() };
        let n_blocks = self.w.blocks_per_row;
        let at_once = CHUNK_QBLOCKS / F::QBLOCKS;
        let padded = rows.len().next_multiple_of(MR);
        let [start, end] = [self.panels.start, self.panels.end].map(|panel| panel * PANEL_ROWS);
        for from in (0..n_blocks).step_by(at_once) {
            let blocks = from..n_blocks.min(from + at_once);
            let qblocks = from * F::QBLOCKS..blocks.end * F::QBLOCKS;
            for (tile, sums) in sums.chunks_exact_mut(padded).enumerate() {
                let first = start + n_cols * tile;
                s.vectorize(UnpackChunk::<S, F> {
                    task: self,
                    s,
                    first,
                    blocks: blocks.clone(),
                    chunk: &mut *chunk,
                    format: PhantomData,
                });
                let next = match (first + n_cols < end, blocks.end < n_blocks) {
                    (true, _) => (first + n_cols, blocks.clone()),
                    (false, true) => (start, blocks.end..n_blocks.min(blocks.end + at_once)),
                    // The thread's next task most often starts at the panel after these.
                    (false, false) => (first + n_cols, 0..n_blocks.min(at_once)),
                };
                let cols = first.saturating_sub(self.rows.start)
                    ..(first + n_cols).saturating_sub(self.rows.start);
                let quants = if const { reads_panel_directly::<S, F>() } {
                    // A last panel without a neighbor is paired with itself, as where panels are unpacked.
                    let panel = first / PANEL_ROWS;
                    [panel, (panel + 1).min(self.panels.end - 1)].map(|panel| {
                        bytemuck::cast_slice(&self.w.panel(panel)[chunk_vectors::<F>(&blocks)])
                    })
                } else {
                    [&chunk.quants[0][..], &chunk.quants[1][..]]
                };
                s.vectorize(Microkernel {
                    s,
                    chunk: &*chunk,
                    quants,
                    x,
                    rows: rows.clone(),
                    qblocks: qblocks.clone(),
                    is_first: from == 0,
                    sums,
                    next: chunk_words::<S, F>(self.w, next),
                    out: (blocks.end == n_blocks).then_some((self.out, cols)),
                });
            }
        }
    }
}
