//! `Q·Kᵀ` and `P·V` of one head of a page.

use std::ops::Range;

use half::f16;

use super::super::element::Element;
use super::super::gemm::{MulAdd, Operands, run_tiles};
use super::super::kv::Q8Head;
use super::SoftmaxState;
use crate::op::PAGE_LEN;
use crate::simd::Simd;

/// Slots `from..to` of a page, which any row of a block sees.
#[derive(Clone, Copy)]
pub(super) struct VisibleSlots {
    /// Position of the page's first slot.
    pub(super) first_pos: usize,
    pub(super) from: usize,
    pub(super) to: usize,
    /// Bytes from this page to the next one of the sequence; 0 for the last.
    pub(super) prefetch_offset: isize,
}

/// Keys and values of one head of a page, in the layout of [`kv`](super::super::kv).
///
/// `NV` is the width of the tiles in vectors. `PREFETCH` prefetches the same places of the next page.
pub(super) trait PageHead {
    /// `scores[r][p] = q[r] · key[p]` for the visible slots, and possibly others.
    fn scores<S: Simd, const NV: usize, const PREFETCH: bool>(
        &mut self,
        s: S,
        state: &mut SoftmaxState<'_>,
        visible: VisibleSlots,
    );

    /// `acc[r] += Σ_p scores[r][p] value[p]` over the visible slots.
    fn add_values<S: Simd, const NV: usize, const PREFETCH: bool>(
        &mut self,
        s: S,
        state: &mut SoftmaxState<'_>,
        visible: VisibleSlots,
    );
}

/// Head of f32 or f16 elements.
pub(super) struct UnscaledHead<'a, E> {
    keys: &'a [E],
    values: &'a [E],
}

impl<'a, E> UnscaledHead<'a, E> {
    #[inline(always)]
    pub(super) fn new(head: &'a [E], head_dim: usize) -> Self {
        let (keys, values) = head.split_at(head_dim * PAGE_LEN);
        Self { keys, values }
    }
}

impl<E: Element> PageHead for UnscaledHead<'_, E> {
    #[inline(always)]
    fn scores<S: Simd, const NV: usize, const PREFETCH: bool>(
        &mut self,
        s: S,
        state: &mut SoftmaxState<'_>,
        visible: VisibleSlots,
    ) {
        let SoftmaxState { rows, head_dim, ref q, ref mut scores, .. } = *state;
        score::<S, E, NV, PREFETCH>(
            s,
            (rows, head_dim),
            (q, 0..head_dim),
            self.keys,
            visible,
            scores,
        );
    }

    #[inline(always)]
    fn add_values<S: Simd, const NV: usize, const PREFETCH: bool>(
        &mut self,
        s: S,
        state: &mut SoftmaxState<'_>,
        visible: VisibleSlots,
    ) {
        let SoftmaxState { rows, value_stride, ref scores, ref mut acc, .. } = *state;
        let columns = 0..value_stride;
        add_weighted::<S, E, NV, PREFETCH>(
            s,
            (rows, value_stride),
            scores,
            self.values,
            columns,
            visible,
            acc,
        );
    }
}

/// Head of 8-bit integers, whose scales are applied to scores and weights: for the few rows of a decode block this is
/// less work than widening the page.
pub(super) struct Q8PageHead<'a, 's> {
    pub(super) head: Q8Head<'a>,
    /// `[rows][PAGE_LEN]`: unscaled scores of one block of channels, then scaled weights.
    pub(super) scratch: &'s mut [f32],
}

impl PageHead for Q8PageHead<'_, '_> {
    #[inline(always)]
    fn scores<S: Simd, const NV: usize, const PREFETCH: bool>(
        &mut self,
        s: S,
        state: &mut SoftmaxState<'_>,
        visible: VisibleSlots,
    ) {
        let SoftmaxState { rows, head_dim, ref q, ref mut scores, .. } = *state;
        scores.fill(0.0);
        for (channels, keys, scales) in self.head.key_blocks() {
            let block = &mut *self.scratch;
            score::<S, i8, NV, PREFETCH>(s, (rows, head_dim), (q, channels), keys, visible, block);
            scale_rows(scales, block, |sum, product| *sum += product, scores);
        }
    }

    #[inline(always)]
    fn add_values<S: Simd, const NV: usize, const PREFETCH: bool>(
        &mut self,
        s: S,
        state: &mut SoftmaxState<'_>,
        visible: VisibleSlots,
    ) {
        let SoftmaxState { rows, value_stride, ref scores, ref mut acc, .. } = *state;
        for (columns, scales) in self.head.value_blocks() {
            let weights = &mut *self.scratch;
            scale_rows(scales, scores, |weight, product| *weight = product, weights);
            let values = self.head.values();
            add_weighted::<S, i8, NV, PREFETCH>(
                s,
                (rows, value_stride),
                weights,
                values,
                columns,
                visible,
                acc,
            );
        }
    }
}

/// `scores[r][p] = Σ_c q[r][c] keys[c][p]` over `channels`, for whole tiles around the visible slots.
///
/// Shapes, with `e = M::K_PER_ELEMENT` channels in an element: `q` = `[rows][head_dim / e]`, `keys` =
/// `[channels / e][PAGE_LEN]`, `scores` = `[rows][PAGE_LEN]`.
#[inline(always)]
pub(super) fn score<S: Simd, M: MulAdd<S>, const NV: usize, const PREFETCH: bool>(
    s: S,
    (rows, head_dim): (usize, usize),
    (q, channels): (&[M::A], Range<usize>),
    keys: &[M::B],
    visible: VisibleSlots,
    scores: &mut [f32],
) {
    let all = head_dim / M::K_PER_ELEMENT;
    let channels = channels.start / M::K_PER_ELEMENT..channels.end / M::K_PER_ELEMENT;
    assert!(channels.end <= all && q.len() == rows * all);
    assert!(keys.len() >= channels.len() * PAGE_LEN && scores.len() == rows * PAGE_LEN);
    let width = NV * S::LANES;
    for n in (visible.from / width * width..visible.to).step_by(width) {
        let operands = Operands {
            a: q[channels.start..].as_ptr(),
            a_stride: all,
            b: keys[n..].as_ptr(),
            b_stride: PAGE_LEN,
            c: scores[n..].as_mut_ptr(),
            c_stride: PAGE_LEN,
            k: channels.len(),
            accumulate: false,
            prefetch_offset: visible.prefetch_offset,
        };
        // SAFETY: the lengths were asserted, and `n + width <= PAGE_LEN`, a multiple of every `width`.
        unsafe { run_tiles::<S, M, NV, PREFETCH>(s, rows, operands) };
    }
}

/// `sums[r][c] += Σ_p weights[r][p] values[p][c]` over the visible slots, for `columns`, whole vectors.
///
/// Shapes, with `e = M::K_PER_ELEMENT` slots in an element: `weights` = `[rows][PAGE_LEN / e]`, `values` =
/// `[PAGE_LEN / e][stride]`, `sums` = `[rows][stride]`. All slots of an element with a visible slot take part.
#[inline(always)]
pub(super) fn add_weighted<S: Simd, M: MulAdd<S>, const NV: usize, const PREFETCH: bool>(
    s: S,
    (rows, stride): (usize, usize),
    weights: &[M::A],
    values: &[M::B],
    columns: Range<usize>,
    visible: VisibleSlots,
    sums: &mut [f32],
) {
    let page_len = PAGE_LEN / M::K_PER_ELEMENT;
    let (from, to) = (visible.from / M::K_PER_ELEMENT, visible.to.div_ceil(M::K_PER_ELEMENT));
    assert!(from <= to && to <= page_len && columns.end <= stride);
    assert!(columns.start.is_multiple_of(S::LANES) && columns.end.is_multiple_of(S::LANES));
    assert!(values.len() == page_len * stride && sums.len() == rows * stride);
    assert_eq!(weights.len(), rows * page_len);
    let mut n = columns.start;
    while n < columns.end {
        let operands = Operands {
            a: weights[from..].as_ptr(),
            a_stride: page_len,
            b: values[from * stride + n..].as_ptr(),
            b_stride: stride,
            c: sums[n..].as_mut_ptr(),
            c_stride: stride,
            k: to - from,
            accumulate: true,
            prefetch_offset: visible.prefetch_offset,
        };
        // SAFETY: the lengths were asserted; the vectors from `n` end at `columns.end` at the latest.
        unsafe {
            if n + NV * S::LANES <= columns.end {
                run_tiles::<S, M, NV, PREFETCH>(s, rows, operands);
                n += NV * S::LANES;
            } else if NV > 2 && n + 2 * S::LANES <= columns.end {
                run_tiles::<S, M, 2, PREFETCH>(s, rows, operands);
                n += 2 * S::LANES;
            } else {
                run_tiles::<S, M, 1, PREFETCH>(s, rows, operands);
                n += S::LANES;
            }
        }
    }
}

/// Calls `put(&mut out[r][p], rows[r][p] * scales[p])` for every row and slot.
#[inline(always)]
fn scale_rows(
    scales: &[f16; PAGE_LEN],
    rows: &[f32],
    put: impl Fn(&mut f32, f32),
    out: &mut [f32],
) {
    let mut wide = [0.0; PAGE_LEN];
    f16::widen_slice(scales, &mut wide);
    let (rows, out) = (rows.as_chunks::<PAGE_LEN>().0, out.as_chunks_mut::<PAGE_LEN>().0);
    for (out, row) in out.iter_mut().zip(rows) {
        for p in 0..PAGE_LEN {
            put(&mut out[p], row[p] * wide[p]);
        }
    }
}
