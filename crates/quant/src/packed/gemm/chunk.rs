//! A K-chunk of [`NR`] vectors of weight rows, unpacked for the microkernel.
//!
//! ```text
//! quants[NR]    per vector: group after group, quad after quad, 4 bytes of each row
//! scales, mins  per group: NR vectors of f32
//! ```

use std::marker::PhantomData;
use std::ops::Range;

use stonechat_compute::simd::{F32, Int8, NullaryFnOnce};

use crate::activation::interleaved::OFFSET;
use crate::packed::format::{Accumulator, Format, LoadQuants, QuantGroups};
use crate::packed::panel::{PANEL_ROWS, Panels, U32x16};
use crate::packed::task::PanelTask;

/// Vectors of weight rows of the microkernel.
pub(super) const NR: usize = 2;
/// Q8 blocks of K that are unpacked at a time: quants and scales stay in the first-level cache.
pub(super) const CHUNK_QBLOCKS: usize = 16;
/// Maximum groups of a chunk; a group is 32 or 16 values with one scale.
pub(super) const CHUNK_GROUPS: usize = 2 * CHUNK_QBLOCKS;
/// Quads of a q8 block.
pub(super) const QUADS: usize = 8;

/// Sums of a row of activations with [`NR`] vectors of weight rows.
pub(super) type RowSums<S> = [F32<S>; NR];

/// Weight rows of [`NR`] vectors.
pub(super) const fn nr_rows<S: Int8>() -> usize {
    NR * S::LANES
}

/// Unpacked weights of [`CHUNK_QBLOCKS`] and [`NR`] vectors.
pub(super) struct KChunk<'a, S: Int8> {
    pub(super) quants: [&'a mut [S::U32s]; NR],
    /// Per group.
    pub(super) scales: &'a mut [[F32<S>; NR]],
    /// Per group.
    pub(super) mins: &'a mut [[F32<S>; NR]],
    pub(super) groups: ChunkGroups,
}

/// The groups of a chunk, the same for all weight rows.
#[derive(Clone, Copy)]
pub(super) struct ChunkGroups {
    /// First half q8 block (16 activations) of each group of weights, in the chunk: `2 * q8 block + half`.
    pub(super) halves: [u32; CHUNK_GROUPS],
    /// First vector of each group's quants.
    pub(super) starts: [u32; CHUNK_GROUPS],
    pub(super) has_mins: bool,
    /// Quads of a group: 8 or 4.
    pub(super) n_quads: usize,
    /// Offset of quants without a min.
    pub(super) offset: i32,
    /// Quads that fit into narrow sums, at most those of a group.
    pub(super) headroom: usize,
    /// Quads added in one loop: `headroom`, or all where sums are widened after each.
    pub(super) run: usize,
}

impl<'a, S: Int8> KChunk<'a, S> {
    /// Vectors of quants per vector of weight rows, of which a chunk has [`NR`].
    const N_QUANTS: usize = CHUNK_QBLOCKS * QUADS;
    /// Floats of scratch memory.
    pub(super) const LEN: usize = NR * (Self::N_QUANTS + 2 * CHUNK_GROUPS) * S::LANES;

    /// A chunk in `scratch`, [`LEN`](Self::LEN) floats.
    pub(super) fn new(scratch: &'a mut [f32]) -> Self {
        let (quants, factors) = scratch.split_at_mut(NR * Self::N_QUANTS * S::LANES);
        let (first, second) = quants.split_at_mut(Self::N_QUANTS * S::LANES);
        let (scales, mins) = factors.split_at_mut(NR * CHUNK_GROUPS * S::LANES);
        let quants = [first, second].map(bytemuck::cast_slice_mut);
        let groups = ChunkGroups {
            halves: [0; CHUNK_GROUPS],
            starts: [0; CHUNK_GROUPS],
            has_mins: false,
            n_quads: QUADS,
            offset: OFFSET,
            headroom: QUADS,
            run: QUADS,
        };
        let (scales, mins) = (bytemuck::cast_slice_mut(scales), bytemuck::cast_slice_mut(mins));
        Self { quants, scales, mins, groups }
    }
}

/// Whether the microkernel reads quants in the panel: its vectors are whole operands of the dot product.
pub(super) const fn reads_panel_directly<S: Int8, F: Format>() -> bool {
    F::IS_PLAIN_BYTES && S::HAS_VNNI && S::LANES == PANEL_ROWS
}

/// Vectors of some blocks of a panel, with their vectors of scales. The first block must be the first of its vector of
/// scales.
pub(super) fn chunk_vectors<F: Format>(blocks: &Range<usize>) -> Range<usize> {
    let offset = |index| F::offset(index);
    offset(blocks.start).scales..offset(blocks.end - 1).vectors + F::BLOCK_VECTORS
}

/// The memory of some blocks of [`NR`] vectors from weight row `first` on; empty for panels beyond the last.
pub(super) fn chunk_words<'a, S: Int8, F: Format>(
    w: Panels<'a>,
    (first, blocks): (usize, Range<usize>),
) -> [&'a [U32x16]; NR] {
    let mut words: [&[U32x16]; NR] = [&[]; NR];
    let panels = first / PANEL_ROWS..w.len.min((first + nr_rows::<S>()).div_ceil(PANEL_ROWS));
    for (panel, words) in panels.zip(&mut words) {
        *words = &w.panel(panel)[chunk_vectors::<F>(&blocks)];
    }
    words
}

/// Unpacks `blocks` of [`NR`] vectors from weight row `first` on.
pub(super) struct UnpackChunk<'a, 'c, S: Int8, F> {
    pub(super) task: &'a PanelTask<'a>,
    pub(super) s: S,
    pub(super) first: usize,
    pub(super) blocks: Range<usize>,
    pub(super) chunk: &'a mut KChunk<'c, S>,
    pub(super) format: PhantomData<F>,
}

impl<S: Int8, F: Format> NullaryFnOnce for UnpackChunk<'_, '_, S, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { task, s, first, blocks, chunk, .. } = self;
        for vector in 0..NR {
            let row = first + vector * S::LANES;
            let part = row % PANEL_ROWS / S::LANES;
            // A last panel without another is multiplied twice; the second result is not stored.
            let panel = (row / PANEL_ROWS).min(task.panels.end - 1);
            let panel = task.w.panel(panel);
            let start = chunk_vectors::<F>(&blocks).start;
            let mut sink =
                ChunkWriter { chunk, vector, in_panel: None, first_qblock: 0, group: 0, quad: 0 };
            for index in blocks.clone() {
                if const { reads_panel_directly::<S, F>() } {
                    let offset = F::offset(index);
                    sink.in_panel = Some(offset.vectors - start);
                }
                F::unpack(s, F::block(panel, index, part), &mut sink);
                sink.first_qblock += F::QBLOCKS;
            }
        }
    }
}

/// Writes quants, scales and mins of one of [`NR`] vectors group by group.
struct ChunkWriter<'a, 'c, S: Int8> {
    chunk: &'a mut KChunk<'c, S>,
    vector: usize,
    /// Position of the block's quants in the panel, if they are read there.
    in_panel: Option<usize>,
    /// First q8 block of the current weight block, in the chunk.
    first_qblock: usize,
    /// Groups written.
    group: usize,
    /// Quads written.
    quad: usize,
}

impl<S: Int8> Accumulator<S> for ChunkWriter<'_, '_, S> {
    #[inline(always)]
    fn accumulate<const N: usize, const BITS: usize>(
        &mut self,
        s: S,
        of: QuantGroups<S, N>,
        quants: &impl LoadQuants<S, N>,
    ) {
        let n_quads = of.quads.len();
        // VNNI takes any unsigned bytes: one offset for all formats, whose correction comes with the activations. Signed
        // bytes need none.
        let offset = match of.mins {
            None if S::HAS_VNNI => OFFSET,
            None if S::HAS_LANE_DOT => 0,
            _ => of.offset,
        };
        if self.in_panel.is_none() {
            for (i, quad) in of.quads.clone().enumerate() {
                let q = quants.load_quants(s, quad);
                for n in 0..N {
                    let larger = s.add_to_bytes(q[n], (offset - of.offset) as u8);
                    self.chunk.quants[self.vector][self.quad + n * n_quads + i] =
                        s.tile_order(larger);
                }
            }
        }
        let groups = &mut self.chunk.groups;
        for n in 0..N {
            let group = self.group + n;
            let qblock = self.first_qblock + of.qblocks[n];
            groups.halves[group] = (2 * qblock + of.quads.start / 4) as u32;
            let start = self.in_panel.unwrap_or(self.quad + n * n_quads);
            groups.starts[group] = start as u32;
            self.chunk.scales[group][self.vector] = of.scales[n];
            self.chunk.mins[group][self.vector] = of.mins.map_or(s.splat(0.0), |mins| mins[n]);
        }
        groups.has_mins = of.mins.is_some();
        groups.n_quads = n_quads;
        groups.offset = offset;
        groups.headroom = n_quads.min(match BITS {
            // Sums of 32 bits: a value of its own for signed bytes, which have products of their own.
            8 if S::HEADROOM > 2 => 1,
            8 => S::TILE_HEADROOM,
            _ => S::TILE_HEADROOM << (7 - BITS),
        });
        groups.run = if groups.headroom == 1 { n_quads } else { groups.headroom };
        assert!(of.mins.is_none() || of.offset == 0, "quants with a min have no offset");
        assert!(
            BITS < 8 || of.offset == i32::from(S::BYTE_OFFSET),
            "bytes have the offset of the tier"
        );
        self.quad += N * n_quads;
        self.group += N;
    }
}
