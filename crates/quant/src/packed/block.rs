//! Reads a weight block of a panel, with software prefetch.

use std::ops::Range;

use stonechat_compute::simd::{F32, Int8, prefetch_line};

use super::layout::BlockOffset;
use super::panel::{PANEL_ROWS, U32x16};
use crate::block::half_power;

/// Prefetch distance in cache lines. Each line that is read prefetches one: a block at a time would exceed the line fill
/// buffers.
const PREFETCH_DISTANCE: usize = 128;

/// A weight block of `S::LANES` rows of a panel.
#[derive(Clone, Copy)]
pub(super) struct PanelBlock<'a> {
    vectors: &'a [U32x16],
    /// Vector of block scales, for formats with `BLOCKS_PER_SCALE_VECTOR`; unused otherwise.
    scales: &'a U32x16,
    /// Position of this block's scales in that vector.
    nth_scale: usize,
    /// Index of the vector in a panel row, below `16 / S::LANES`.
    part: usize,
    /// Whether each vector that is read prefetches the one [`PREFETCH_DISTANCE`] after it.
    prefetch: bool,
}

impl<'a> PanelBlock<'a> {
    /// The block at `offset` of a panel, `block_vectors` long, without prefetch.
    #[inline(always)]
    pub(super) fn new(
        panel: &'a [U32x16],
        offset: BlockOffset,
        block_vectors: usize,
        part: usize,
    ) -> Self {
        let BlockOffset { vectors, scales, nth_scale } = offset;
        Self {
            vectors: &panel[vectors..][..block_vectors],
            scales: &panel[scales],
            nth_scale,
            part,
            prefetch: false,
        }
    }

    /// The same block with or without prefetch. `prefetch` must be a constant where this is inlined.
    #[inline(always)]
    pub(super) fn with_prefetch(self, prefetch: bool) -> Self {
        Self { prefetch, ..self }
    }

    #[inline(always)]
    fn prefetch(&self, vector: &U32x16) {
        if self.prefetch {
            prefetch_line(std::ptr::from_ref(vector).wrapping_add(PREFETCH_DISTANCE));
        }
    }

    /// Prefetches for vectors that [`reload`](Self::reload) reads.
    #[inline(always)]
    pub(super) fn prefetch_for(&self, vectors: Range<usize>) {
        for i in vectors {
            self.prefetch(&self.vectors[i]);
        }
    }

    /// Vector `i`: 32 bits of each row.
    #[inline(always)]
    pub(super) fn load<S: Int8>(&self, s: S, i: usize) -> S::U32s {
        self.prefetch(&self.vectors[i]);
        self.reload(s, i)
    }

    /// Vector `i` without prefetch, for vectors that are read several times.
    #[inline(always)]
    pub(super) fn reload<S: Int8>(&self, s: S, i: usize) -> S::U32s {
        s.load_u32s(&self.vectors[i].0, self.part)
    }

    /// Vector `i` as two f16 of each row.
    #[inline(always)]
    pub(super) fn load_f16_pair<S: Int8>(&self, s: S, i: usize) -> [F32<S>; 2] {
        self.prefetch(&self.vectors[i]);
        let [a, b] = bytemuck::cast_ref::<U32x16, [[u16; PANEL_ROWS]; 2]>(&self.vectors[i]);
        [s.load_f16s(a, self.part), s.load_f16s(b, self.part)]
    }

    /// The second 16 bits of each row in vector `i`, which holds pairs of 16 bits, as integers.
    #[inline(always)]
    pub(super) fn load_second_u16<S: Int8>(&self, s: S, i: usize) -> S::U32s {
        let [_, second] = bytemuck::cast_ref::<U32x16, [[u16; PANEL_ROWS]; 2]>(&self.vectors[i]);
        s.load_u16s(second, self.part)
    }

    /// The block scale `d` of each row, an f16 from the vector of scales.
    #[inline(always)]
    pub(super) fn load_scale_f16<S: Int8>(&self, s: S) -> F32<S> {
        self.prefetch(self.scales);
        let scales = bytemuck::cast_ref::<U32x16, [[u16; PANEL_ROWS]; 2]>(self.scales);
        s.load_f16s(&scales[self.nth_scale % 2], self.part)
    }

    /// The block scale of each row, an E8M0 exponent from the vector of scales, halved.
    #[inline(always)]
    pub(super) fn load_scale_e8m0<S: Int8>(&self, s: S) -> F32<S> {
        self.prefetch(self.scales);
        let exponents = bytemuck::cast_ref::<U32x16, [[u8; PANEL_ROWS]; 4]>(self.scales);
        let exponents = exponents[self.nth_scale % 4];
        let mut scales = [0.0; PANEL_ROWS];
        for i in 0..PANEL_ROWS {
            scales[i] = half_power(exponents[i]);
        }
        let of_part = &scales[self.part * S::LANES..][..S::LANES];
        // SAFETY: the slice has `LANES` values.
        unsafe { s.load(of_part.as_ptr()) }
    }
}
