//! The GEMM microkernel: MR rows of activations times a K-chunk of [`NR`] vectors of weight rows.
//!
//! ```text
//! for each group of the chunk:                                16 or 32 values with a scale
//!     products[MR][NR] = offsets[MR]                          -offset * sum(q), from the activations
//!     for each quad:
//!         products[m][v] += dot4(w[v][quad], broadcast x[m][quad])
//!     sums[m][v] += (f32(products[m][v]) * scale[v]) * d[m] + min[v] * (d * sum(q))[m]
//! ```

use std::ops::Range;

use stonechat_compute::cpu::SharedMut;
use stonechat_compute::simd::{Int8, NullaryFnOnce, prefetch};

use super::chunk::{ChunkGroups, KChunk, NR, QUADS, RowSums};
use crate::activation::QBlock;
use crate::activation::interleaved::{InterleavedQBlocks, OFFSET};
use crate::activation::tiled::TiledRows;
use crate::packed::panel::U32x16;

/// Products of all rows of activations with a chunk of weights.
pub(super) struct Microkernel<'a, 'c, S: Int8, const MR: usize> {
    pub(super) s: S,
    pub(super) chunk: &'a KChunk<'c, S>,
    /// The chunk's quants, unpacked or in the panel.
    pub(super) quants: [&'a [S::U32s]; NR],
    pub(super) x: &'a TiledRows<InterleavedQBlocks<MR>>,
    /// Rows of `x`; the first is that of a row block.
    pub(super) rows: Range<usize>,
    /// The chunk's q8 blocks.
    pub(super) qblocks: Range<usize>,
    /// Whether this is the first chunk, before which `sums` hold any values.
    pub(super) is_first: bool,
    /// Sums of `rows`, filled up to whole row blocks.
    pub(super) sums: &'a mut [RowSums<S>],
    /// Panel memory to prefetch: the next chunk to unpack.
    pub(super) next: [&'a [U32x16]; NR],
    /// Output columns to prefetch, if this is the last chunk.
    pub(super) out: Option<(SharedMut<'a>, Range<usize>)>,
}

impl<S: Int8, const MR: usize> NullaryFnOnce for Microkernel<'_, '_, S, MR> {
    type Output = ();

    #[inline(always)]
    fn call(mut self) {
        let ChunkGroups { n_quads, has_mins, headroom, .. } = self.chunk.groups;
        if const { S::HAS_VNNI } {
            return match (n_quads, has_mins) {
                (8, false) => self.all_rows::<8, false, 8>(),
                (8, true) => self.all_rows::<8, true, 8>(),
                (_, false) => self.all_rows::<4, false, 4>(),
                (_, true) => self.all_rows::<4, true, 4>(),
            };
        }
        match (n_quads, has_mins, headroom) {
            (8, false, 1) => self.all_rows::<8, false, 1>(),
            (8, false, 8) => self.all_rows::<8, false, 8>(),
            (8, true, 8) => self.all_rows::<8, true, 8>(),
            (8, false, 4) => self.all_rows::<8, false, 4>(),
            (8, true, 4) => self.all_rows::<8, true, 4>(),
            (4, false, 4) => self.all_rows::<4, false, 4>(),
            (4, true, 4) => self.all_rows::<4, true, 4>(),
            (4, false, 2) => self.all_rows::<4, false, 2>(),
            other => unreachable!("no format has groups of {other:?}"),
        }
    }
}

impl<S: Int8, const MR: usize> Microkernel<'_, '_, S, MR> {
    #[inline(always)]
    fn all_rows<const G: usize, const MINS: bool, const HEADROOM: usize>(&mut self) {
        for row in (0..self.sums.len()).step_by(MR) {
            self.prefetch(row..self.rows.len().min(row + MR));
            self.tile::<G, MINS, HEADROOM>(row);
        }
    }

    /// Prefetches a share of the next chunk and of the output for each tile: all of it at a time would exceed the
    /// requests that a core has in flight.
    #[inline(always)]
    fn prefetch(&self, rows: Range<usize>) {
        let n_rows = self.rows.len();
        for words in self.next {
            let share = words.len() * rows.start / n_rows..words.len() * rows.end / n_rows;
            for word in &words[share] {
                prefetch(word);
            }
        }
        if let Some((out, cols)) = &self.out {
            rows.for_each(|row| out.prefetch(self.rows.start + row, cols.clone()));
        }
    }

    /// Adds the products of rows `row .. row + MR` to their sums. Groups have `G` quads, of which `HEADROOM` fit into
    /// narrow sums.
    #[inline(always)]
    fn tile<const G: usize, const MINS: bool, const HEADROOM: usize>(&mut self, row: usize) {
        let Self { s, chunk, quants, x, is_first, .. } = *self;
        let n_qblocks = self.qblocks.len();
        let x = x.tiles((self.rows.start + row) / MR, self.qblocks.clone());
        let mut sums = [[s.splat(0.0); NR]; MR];
        if !is_first {
            sums.copy_from_slice(&self.sums[row..row + MR]);
        }
        for group in 0..n_qblocks * QUADS / G {
            let start = chunk.groups.starts[group] as usize;
            let quants = [&quants[0][start..start + G], &quants[1][start..start + G]];
            let half = chunk.groups.halves[group] as usize;
            let (qblock, half) = (half / 2, half % 2);
            let x = &x[qblock];
            let first = if G == QUADS { 0 } else { half * G };
            let mut offsets = [0; MR];
            // Neither quants with mins have an offset, nor signed bytes, which are those of 8 quads without headroom.
            let are_signed = S::BYTE_OFFSET == 0 && G == QUADS && HEADROOM == 1;
            if !MINS && !are_signed && !S::HAS_LANE_DOT {
                let all = if G == QUADS { &x.offsets } else { &x.offsets_of_halves[half] };
                for m in 0..MR {
                    offsets[m] = if S::HAS_VNNI {
                        all[m]
                    } else {
                        (all[m] >> OFFSET.trailing_zeros()) * chunk.groups.offset
                    };
                }
            }
            let products = if const { S::HAS_LANE_DOT } {
                self.lane_products::<G, HEADROOM>(quants, &x.quants, first)
            } else {
                self.products::<G, HEADROOM>(quants, &x.quants, first, offsets)
            };
            let (scales, mins) = (chunk.scales[group], chunk.mins[group]);
            for m in 0..MR {
                let x_scale = s.splat(x.scales[m]);
                for v in 0..NR {
                    let products = if const { S::HAS_LANE_DOT } {
                        s.finish_lanes(products[m][v])
                    } else {
                        s.finish(products[m][v], offsets[m])
                    };
                    sums[m][v] = s.mul_add(s.mul(products, scales[v]), x_scale, sums[m][v]);
                    if MINS {
                        let x_sum = if G == QUADS {
                            x.scaled_sums[m]
                        } else {
                            let offset = x.offsets_of_halves[half][m];
                            x.scales[m] * (offset as f32 * (-1.0 / OFFSET as f32))
                        };
                        sums[m][v] = s.mul_add(mins[v], s.splat(x_sum), sums[m][v]);
                    }
                }
            }
        }
        self.sums[row..row + MR].copy_from_slice(&sums);
    }

    /// Integer products of a group with `G` quads of the activations, from quad `first` on.
    #[inline(always)]
    fn products<const G: usize, const HEADROOM: usize>(
        &self,
        quants: [&[S::U32s]; NR],
        x: &[QBlock; MR],
        first: usize,
        offsets: [i32; MR],
    ) -> [[S::Sums; NR]; MR] {
        let s = self.s;
        let mut products = [[s.start(0); NR]; MR];
        for m in 0..MR {
            products[m] = [s.start(offsets[m]); NR];
        }
        let widens_each = HEADROOM == 1;
        let run = if widens_each { G } else { HEADROOM };
        // Not a constant on 16 registers: LLVM would unroll all quads into one block, and spill.
        let is_constant = S::HAS_VNNI || S::N_REGISTERS >= 32;
        let n = if is_constant { run } else { self.chunk.groups.run };
        for from in (0..G).step_by(run) {
            assert!(from + n <= G && first + G <= QUADS);
            if from > 0 {
                for m in 0..MR {
                    products[m] = [s.widen(products[m][0]), s.widen(products[m][1])];
                }
            }
            for quad in from..from + n {
                let w = [quants[0][quad], quants[1][quad]];
                for m in 0..MR {
                    for v in 0..NR {
                        let sums = products[m][v];
                        products[m][v] = if widens_each {
                            s.widen(s.dot4_bytes(sums, w[v], x[m].quads(), first + quad))
                        } else {
                            s.dot4_quad(sums, w[v], x[m].quads(), first + quad)
                        };
                    }
                }
            }
        }
        products
    }

    /// [`products`](Self::products) of signed bytes with lanes of vectors of activations.
    #[inline(always)]
    fn lane_products<const G: usize, const HEADROOM: usize>(
        &self,
        quants: [&[S::U32s]; NR],
        x: &[QBlock; MR],
        first: usize,
    ) -> [[S::Sums; NR]; MR] {
        let s = self.s;
        let mut products = [[s.start(0); NR]; MR];
        assert!(G <= quants[0].len() && G <= quants[1].len() && first + G <= QUADS);
        // The lane is part of the instruction. LLVM would not unroll a loop.
        macro_rules! lanes {
            ($four:literal: $($lane:literal)+) => {$(
                let quad = 4 * $four + $lane;
                let is_full = HEADROOM < G && quad % HEADROOM == HEADROOM - 1 && quad < G - 1;
                let w = [quants[0][quad], quants[1][quad]];
                for m in 0..MR {
                    let x = x[m].quads();
                    for v in 0..NR {
                        let sums = s.dot4_lane::<$lane>(products[m][v], w[v], x, first / 4 + $four);
                        products[m][v] = if is_full { s.widen_lanes(sums) } else { sums };
                    }
                }
            )+};
        }
        lanes!(0: 0 1 2 3);
        if const { G == QUADS } {
            lanes!(1: 0 1 2 3);
        }
        products
    }
}
