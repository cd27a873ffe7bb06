//! Products with the keys and the values of a page.

use std::ops::Range;

use half::f16;

use super::super::element::Element;
use super::super::gemm::{Multiply, Operands, tile_rows};
use super::super::kv::{PAGE_LEN, Q8Head};
use super::State;
use crate::simd::Simd;

/// The positions of a page that any row of a block sees.
#[derive(Clone, Copy)]
pub(super) struct Seen {
    /// Position of the page's first slot.
    pub(super) start: usize,
    /// Slots.
    pub(super) from: usize,
    pub(super) to: usize,
    /// Bytes from this page to the next; 0 if there is none.
    pub(super) ahead: isize,
}

/// A head's keys and values of a page, in the layout of [`kv`](super::super::kv). With `ASKS`, what is read asks for
/// what lies in its place in the next page.
pub(super) trait Head {
    /// `scores[r][p] = q[r] · key[p]` for the slots that are seen, and possibly others.
    fn scores<S: Simd, const NV: usize, const ASKS: bool>(
        &mut self,
        s: S,
        state: &mut State<'_>,
        seen: Seen,
    );

    /// `sums[r] += Σ_p scores[r][p] value[p]` over the slots that are seen.
    fn add_values<S: Simd, const NV: usize, const ASKS: bool>(
        &mut self,
        s: S,
        state: &mut State<'_>,
        seen: Seen,
    );
}

/// Elements that need no scale.
pub(super) struct Plain<'a, E> {
    keys: &'a [E],
    values: &'a [E],
}

impl<'a, E> Plain<'a, E> {
    #[inline(always)]
    pub(super) fn new(head: &'a [E], head_dim: usize) -> Self {
        let (keys, values) = head.split_at(head_dim * PAGE_LEN);
        Self { keys, values }
    }
}

impl<E: Element> Head for Plain<'_, E> {
    #[inline(always)]
    fn scores<S: Simd, const NV: usize, const ASKS: bool>(
        &mut self,
        s: S,
        state: &mut State<'_>,
        seen: Seen,
    ) {
        let State { rows, head_dim, ref q, ref mut scores, .. } = *state;
        score::<S, E, NV, ASKS>(s, (rows, head_dim), (q, 0..head_dim), self.keys, seen, scores);
    }

    #[inline(always)]
    fn add_values<S: Simd, const NV: usize, const ASKS: bool>(
        &mut self,
        s: S,
        state: &mut State<'_>,
        seen: Seen,
    ) {
        let State { rows, value_stride, ref scores, ref mut sums, .. } = *state;
        let columns = 0..value_stride;
        add_weighted::<S, E, NV, ASKS>(
            s,
            (rows, value_stride),
            scores,
            self.values,
            columns,
            seen,
            sums,
        );
    }
}

/// 8-bit integers, whose scales are applied to scores and weights: for few rows that is less than widening.
pub(super) struct Scaled<'a, 's> {
    pub(super) head: Q8Head<'a>,
    /// As large as the scores.
    pub(super) scratch: &'s mut [f32],
}

impl Head for Scaled<'_, '_> {
    #[inline(always)]
    fn scores<S: Simd, const NV: usize, const ASKS: bool>(
        &mut self,
        s: S,
        state: &mut State<'_>,
        seen: Seen,
    ) {
        let State { rows, head_dim, ref q, ref mut scores, .. } = *state;
        scores.fill(0.0);
        for (channels, keys, scales) in self.head.key_blocks() {
            let block = &mut *self.scratch;
            score::<S, i8, NV, ASKS>(s, (rows, head_dim), (q, channels), keys, seen, block);
            scale_rows(scales, block, |sum, product| *sum += product, scores);
        }
    }

    #[inline(always)]
    fn add_values<S: Simd, const NV: usize, const ASKS: bool>(
        &mut self,
        s: S,
        state: &mut State<'_>,
        seen: Seen,
    ) {
        let State { rows, value_stride, ref scores, ref mut sums, .. } = *state;
        for (columns, scales) in self.head.value_blocks() {
            let weights = &mut *self.scratch;
            scale_rows(scales, scores, |weight, product| *weight = product, weights);
            let values = self.head.values();
            add_weighted::<S, i8, NV, ASKS>(
                s,
                (rows, value_stride),
                weights,
                values,
                columns,
                seen,
                sums,
            );
        }
    }
}

/// `scores[r][p] = Σ q[r][c] keys[c][p]` over `channels`, for whole vectors around the slots that are seen; `q` is
/// `[rows][head_dim]`, `keys` begins with the first channel. Both hold `M::VALUES` channels in one.
#[inline(always)]
pub(super) fn score<S: Simd, M: Multiply<S>, const NV: usize, const ASKS: bool>(
    s: S,
    (rows, head_dim): (usize, usize),
    (q, channels): (&[M::Row], Range<usize>),
    keys: &[M::Column],
    seen: Seen,
    scores: &mut [f32],
) {
    let all = head_dim / M::VALUES;
    let channels = channels.start / M::VALUES..channels.end / M::VALUES;
    assert!(channels.end <= all && q.len() == rows * all);
    assert!(keys.len() >= channels.len() * PAGE_LEN && scores.len() == rows * PAGE_LEN);
    let width = NV * S::LANES;
    for n in (seen.from / width * width..seen.to).step_by(width) {
        let operands = Operands {
            a: q[channels.start..].as_ptr(),
            a_stride: all,
            b: keys[n..].as_ptr(),
            b_stride: PAGE_LEN,
            c: scores[n..].as_mut_ptr(),
            c_stride: PAGE_LEN,
            k: channels.len(),
            accumulate: false,
            ahead: seen.ahead,
        };
        // SAFETY: the lengths were asserted, and `n + width <= PAGE_LEN`, a multiple of every `width`.
        unsafe { tile_rows::<S, M, NV, ASKS>(s, rows, operands) };
    }
}

/// `sums[r][c] += Σ weights[r][p] values[p][c]` over the slots that are seen, for `columns`, multiples of the widest
/// vector; `weights` is `[rows][PAGE_LEN]`, `values` `[PAGE_LEN][stride]`, both with `M::VALUES` slots in one, `sums`
/// is `[rows][stride]`. Slots that share one with a slot that is seen take part.
#[inline(always)]
pub(super) fn add_weighted<S: Simd, M: Multiply<S>, const NV: usize, const ASKS: bool>(
    s: S,
    (rows, stride): (usize, usize),
    weights: &[M::Row],
    values: &[M::Column],
    columns: Range<usize>,
    seen: Seen,
    sums: &mut [f32],
) {
    let page_len = PAGE_LEN / M::VALUES;
    let (from, to) = (seen.from / M::VALUES, seen.to.div_ceil(M::VALUES));
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
            ahead: seen.ahead,
        };
        // SAFETY: the lengths were asserted; the vectors from `n` end at `columns.end` at the latest.
        unsafe {
            if n + NV * S::LANES <= columns.end {
                tile_rows::<S, M, NV, ASKS>(s, rows, operands);
                n += NV * S::LANES;
            } else if NV > 2 && n + 2 * S::LANES <= columns.end {
                tile_rows::<S, M, 2, ASKS>(s, rows, operands);
                n += 2 * S::LANES;
            } else {
                tile_rows::<S, M, 1, ASKS>(s, rows, operands);
                n += S::LANES;
            }
        }
    }
}

/// Gives `put` each entry of `out` and the product of that of `rows` with its slot's scale.
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
