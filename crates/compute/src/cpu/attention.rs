//! Attention over paged keys and values: the only attention op. Self-attention of a decoder (causal), cross-attention
//! and an encoder's self-attention differ only in the positions visible to a row.
//!
//! Online softmax over pages (`FlashAttention`, Dao et al. 2022, algorithm 1):
//!
//! ```text
//! in parallel, for each block of BLOCK_ROWS tile rows of one sequence and one KV head g:
//!   Q = scale * q[t,h]     a tile row r is one query row t at one query head h of g (GQA)
//!   m[r] = -inf or the sink, l[r] = 0 or 1, O[r] = 0
//!   for each page that any row sees:                            C channels, P = PAGE_LEN slots
//!     S[r][p] = Q[r] · K[p]                                     head: GEMM with keys [C][P]
//!     S = soft_cap, slopes, -inf outside of the row's positions
//!     if max_p S[r] > m[r] + RESCALE_THRESHOLD:                 most pages skip this
//!       l[r], O[r] *= exp(m[r] - max), m[r] = max
//!     S[r][p] = exp(S[r][p] - m[r]),  l[r] += Σ_p S[r][p]       softmax_row
//!     O[r] += Σ_p S[r][p] V[p]                                  head: GEMM with values [P][C']
//!   out[t,h] = O[r] / l[r]
//! ```
//!
//! Query heads that share a KV head are rows of the same block, so that a decode step reads each page once. `K` and `V`
//! are read as stored (f32, f16), with scales applied to `S` (8 bits, decode), widened to f32 once per block (8 bits and,
//! on tiers that convert f16 in software, f16; prefill), or packed to bf16 once per block (`bf16`, prefill on AVX-512 BF16 and AMX). A decode block, of at most
//! [`MAX_DECODE_ROWS`] rows, prefetches the next page while it reads one.

#[cfg(target_arch = "x86_64")]
mod bf16;
mod head;

use std::ops::Range;

use half::f16;

use self::head::{PageHead, Q8PageHead, UnscaledHead, VisibleSlots};
use super::kv::{KvHead, KvPool};
use super::math::{exp, tanh};
use super::matrix::{MatMut, MatRef, SharedMut};
use crate::op::{AttentionArgs, KvDType, KvLayout, PAGE_LEN, Precision, QueryRow};
use crate::scratch::with_scratch;
use crate::simd::{F32, Kernel, Simd};
use crate::{Cpu, Isa};
use crate::{check_below, check_eq, check_multiple};

/// Maximum tile rows of a block: enough products per load of a page from the L2 cache.
const BLOCK_ROWS: usize = 48;
/// Maximum tile rows of a block whose pages are packed to bf16: enough to amortize the packing.
const BF16_BLOCK_ROWS: usize = 96;
/// Maximum tile rows of a decode block, which is bound by memory: its tiles are 4 vectors wide instead of 2, where there
/// are 32 registers.
const MAX_DECODE_ROWS: usize = 8;
/// Floats of scratch on the stack: enough for one query row of the usual head widths, so that such a decode step needs
/// no thread-local scratch.
const STACK_LEN: usize = 2048;

/// Lanes of the widest vector.
const MAX_LANES: usize = 16;
/// Excess of a score over the running maximum `m` at which `l` and `O` are rescaled. Weights stay below `e^8`, and most
/// pages need no horizontal maximum.
const RESCALE_THRESHOLD: f32 = 8.0;

/// Minimum multiplications of the op for which a parallel loop is faster.
const MIN_PARALLEL: usize = 128 << 10;

/// Arguments of [`attention`].
#[derive(Debug, Clone, Copy)]
pub struct Attention<'a> {
    /// `[T, H*C]`.
    pub q: MatRef<'a>,
    /// Pages of keys and values.
    pub kv: &'a KvPool,
    /// `[T]`: positions of each query row. Adjacent rows with the same pages share a block.
    pub rows: &'a [QueryRow],
    /// Page indices of all sequences, concatenated.
    pub page_table: &'a [u32],
    /// Heads, scores and precision.
    pub op: AttentionArgs<&'a [f32]>,
}

/// `out[t,h] = sum_p softmax_p(scale * q[t,h] · k[p,g]) * v[p,g]` over the positions
/// `kv_start .. kv_len` of the row's pages.
///
/// Shapes: `out` = `[T, H*C]`. Numerics: f32 sums, `exp` within 2 ULP, `tanh` within 4; with bf16
/// ([`AttentionArgs::precision`]) each operand of a product has a relative error of up to `2^-8`. Slots before the first and
/// after the last position that the rows of a sequence see are not used, whatever they hold. A row that sees no position
/// gives zeros.
///
/// # Panics
/// If the shapes do not fit, or a row names pages outside the table or the pool.
#[track_caller]
pub fn attention(cpu: &Cpu, out: MatMut<'_>, args: Attention<'_>) {
    let out = out.checked();
    let group = check(&out, &args);
    if args.rows.is_empty() || args.op.n_heads == 0 {
        return;
    }
    let out = out.shared();
    let use_bf16 = uses_bf16(cpu.isa, args.kv.layout(), args.op.precision);
    let n_block_rows = if use_bf16 { BF16_BLOCK_ROWS } else { BLOCK_ROWS };
    let block_rows = (n_block_rows / group).max(1);
    let n_kv_heads = args.kv.layout().n_kv_heads;
    // Tasks walk the rows to find their block, so that no list of blocks is allocated.
    let n_blocks = RowBlocks::new(args.rows, block_rows).count();
    // With fewer blocks than threads, the query heads of a KV head are split into parts.
    let is_small = work(&args) < MIN_PARALLEL;
    let n_parts = if is_small { 1 } else { cpu.threads.n_threads() / (n_blocks * n_kv_heads) };
    let part_heads = group.div_ceil(n_parts.clamp(1, group));
    let n_parts = group.div_ceil(part_heads);
    let run = |task: usize| {
        let (index, task) = (task / (n_kv_heads * n_parts), task % (n_kv_heads * n_parts));
        let Some((first, n_rows)) = find_block(args.rows, block_rows, index) else { return };
        let (kv_head, from) = (task / n_parts, task % n_parts * part_heads);
        let n_heads = part_heads.min(group - from);
        let first_head = kv_head * group + from;
        let block = AttentionBlock { out, args, kv_head, first_head, n_heads, first, n_rows };
        #[cfg(target_arch = "x86_64")]
        if use_bf16 && !block.is_decode() {
            return bf16::run(cpu.isa, block);
        }
        let len = block.scratch_len(block.tile_rows());
        if len <= STACK_LEN {
            cpu.isa.dispatch(AttentionKernel { block, scratch: &mut [0.0; STACK_LEN][..len] });
        } else {
            with_scratch(len, |scratch| cpu.isa.dispatch(AttentionKernel { block, scratch }));
        }
    };
    let n_tasks = n_blocks * n_kv_heads * n_parts;
    if is_small {
        (0..n_tasks).for_each(run);
    } else {
        cpu.threads.run(n_tasks, run);
    }
}

/// Whether prefill blocks use bf16.
fn uses_bf16(isa: Isa, layout: KvLayout, precision: Precision) -> bool {
    #[cfg(target_arch = "x86_64")]
    let multiple = bf16::channel_multiple(isa, precision);
    #[cfg(not(target_arch = "x86_64"))]
    let multiple = {
        let _ = (isa, precision);
        None
    };
    let fits = |multiple: usize| layout.head_dim.is_multiple_of(multiple);
    layout.dtype != KvDType::Q8_0 && multiple.is_some_and(fits)
}

/// Multiplications of the whole op.
fn work(args: &Attention<'_>) -> usize {
    let visible = |row: &QueryRow| row.kv_len.saturating_sub(row.kv_start) as usize;
    let positions: usize = args.rows.iter().map(visible).sum();
    2 * positions * args.op.n_heads * args.kv.layout().head_dim
}

/// Checks the shapes; returns the number of query heads per KV head.
#[track_caller]
fn check(out: &MatMut<'_>, args: &Attention<'_>) -> usize {
    let (q, layout) = (args.q.checked(), args.kv.layout());
    let width = args.op.n_heads * layout.head_dim;
    check_multiple!(args.op.n_heads, layout.n_kv_heads, "attention: heads by KV heads");
    check_eq!((q.rows, q.cols), (args.rows.len(), width), "attention: shape of the queries");
    check_eq!((out.rows, out.cols), (args.rows.len(), width), "attention: shape of the output");
    for (what, values) in [("slope", args.op.slopes), ("sink", args.op.sinks)] {
        let len = values.map_or(args.op.n_heads, <[f32]>::len);
        check_eq!(len, args.op.n_heads, "attention: {what}s, one per head");
    }
    for (t, row) in args.rows.iter().enumerate() {
        let is_new = t == 0 || !row.has_pages_of(&args.rows[t - 1]);
        let pages = row.first_page as usize..row.first_page as usize + row.n_pages as usize;
        assert!(
            pages.end <= args.page_table.len()
                && row.kv_len as usize <= row.n_pages as usize * PAGE_LEN,
            "attention: {row:?} does not fit a page table of {}",
            args.page_table.len()
        );
        if is_new {
            for &page in &args.page_table[pages] {
                check_below!(page as usize, args.kv.n_pages(), "attention: page");
            }
        }
    }
    args.op.n_heads / layout.n_kv_heads
}

/// Splits the rows into blocks of at most `block_rows` adjacent rows with the same pages, as (first row, number of rows).
struct RowBlocks<'a> {
    rows: &'a [QueryRow],
    block_rows: usize,
    next: usize,
}

impl<'a> RowBlocks<'a> {
    fn new(rows: &'a [QueryRow], block_rows: usize) -> Self {
        Self { rows, block_rows, next: 0 }
    }
}

impl Iterator for RowBlocks<'_> {
    type Item = (usize, usize);

    fn next(&mut self) -> Option<(usize, usize)> {
        let first = self.next;
        let head = *self.rows.get(first)?;
        let rest = &self.rows[first..];
        let n = rest
            .iter()
            .take(self.block_rows)
            .position(|&row| !row.has_pages_of(&head))
            .unwrap_or(self.block_rows.min(rest.len()));
        self.next = first + n;
        Some((first, n))
    }
}

fn find_block(rows: &[QueryRow], block_rows: usize, index: usize) -> Option<(usize, usize)> {
    RowBlocks::new(rows, block_rows).nth(index)
}

/// Query rows `first .. first + n_rows` at query heads `first_head .. first_head + n_heads`, which read `kv_head`.
#[derive(Clone, Copy)]
struct AttentionBlock<'a> {
    out: SharedMut<'a>,
    args: Attention<'a>,
    kv_head: usize,
    first_head: usize,
    n_heads: usize,
    first: usize,
    n_rows: usize,
}

impl AttentionBlock<'_> {
    /// Rows of the tile: one per query row and query head.
    fn tile_rows(&self) -> usize {
        self.n_rows * self.n_heads
    }

    /// Floats of scratch for a tile padded to `rows` rows.
    fn scratch_len(&self, rows: usize) -> usize {
        let layout = self.args.kv.layout();
        let state = layout.head_dim + PAGE_LEN + layout.value_stride() + 1 + MAX_LANES;
        rows * state + self.extra_len()
    }

    /// Floats of scratch for scores of [`Q8PageHead`] (decode), or one head of a page in f32 (prefill).
    fn extra_len(&self) -> usize {
        let layout = self.args.kv.layout();
        match layout.dtype {
            KvDType::Q8_0 if self.is_decode() => self.tile_rows() * PAGE_LEN,
            KvDType::F16 if self.is_decode() => 0,
            KvDType::Q8_0 | KvDType::F16 => layout.head_len(),
            KvDType::F32 => 0,
        }
    }

    /// Whether the block is bound by reading the pages, as in a decode step.
    fn is_decode(&self) -> bool {
        self.tile_rows() <= MAX_DECODE_ROWS
    }

    /// Smallest range with all positions that any row sees.
    fn visible(&self) -> Range<usize> {
        let rows = &self.args.rows[self.first..][..self.n_rows];
        let visible = rows.iter().filter(|row| row.kv_start < row.kv_len);
        let start = visible.clone().map(|row| row.kv_start).min().unwrap_or(0);
        let end = visible.map(|row| row.kv_len).max().unwrap_or(0);
        start as usize..end as usize
    }

    fn query(&self, r: usize) -> QueryRow {
        self.args.rows[self.row(r)]
    }

    /// Query row of tile row `r`.
    fn row(&self, r: usize) -> usize {
        self.first + r / self.n_heads
    }

    /// Pages that any row sees, with their visible slots.
    fn pages(&self) -> impl Iterator<Item = (u32, VisibleSlots)> {
        let visible = self.visible();
        let args = &self.args;
        let page_bytes = args.kv.layout().page_bytes() as isize;
        let table = &args.page_table[args.rows[self.first].first_page as usize..];
        (visible.start / PAGE_LEN..visible.end.div_ceil(PAGE_LEN)).map(move |page| {
            let start = page * PAGE_LEN;
            let from = visible.start.saturating_sub(start);
            let to = PAGE_LEN.min(visible.end - start);
            let prefetch_offset = if start + PAGE_LEN < visible.end {
                (table[page + 1] as isize - table[page] as isize) * page_bytes
            } else {
                0
            };
            (table[page], VisibleSlots { first_pos: start, from, to, prefetch_offset })
        })
    }

    /// Query head of tile row `r`.
    fn query_head(&self, r: usize) -> usize {
        self.first_head + r % self.n_heads
    }
}

/// Attention of one block with f32 products.
struct AttentionKernel<'a, 's> {
    block: AttentionBlock<'a>,
    scratch: &'s mut [f32],
}

/// Online softmax of a block. Each slice has one entry or row per tile row, and may be padded with further rows.
struct SoftmaxState<'s> {
    rows: usize,
    /// `C`.
    head_dim: usize,
    /// `C'`, `C` padded to whole vectors.
    value_stride: usize,
    /// Scaled queries, `[rows][C]`.
    q: &'s mut [f32],
    /// `S`, `[rows][PAGE_LEN]`.
    scores: &'s mut [f32],
    /// Accumulators `O`, `[rows][C']`.
    acc: &'s mut [f32],
    /// `m`, `[rows]`.
    max: &'s mut [f32],
    /// `l`, `[rows][MAX_LANES]`: partial sums, one per lane.
    total: &'s mut [f32],
}

impl<'s> SoftmaxState<'s> {
    /// State before the first page, padded to `padded_rows` rows: scaled queries, and the sinks in `m` and `l`.
    #[inline(always)]
    fn new(block: &AttentionBlock<'_>, padded_rows: usize, scratch: &'s mut [f32]) -> Self {
        let (layout, args) = (block.args.kv.layout(), &block.args);
        let (rows, c) = (block.tile_rows(), layout.head_dim);
        let value_stride = layout.value_stride();
        let (q, rest) = scratch.split_at_mut(padded_rows * c);
        let (scores, rest) = rest.split_at_mut(padded_rows * PAGE_LEN);
        let (acc, rest) = rest.split_at_mut(padded_rows * value_stride);
        let (max, total) = rest.split_at_mut(padded_rows);
        acc.fill(0.0);
        max.fill(f32::NEG_INFINITY);
        total.fill(0.0);
        for r in 0..rows {
            let head = block.query_head(r);
            let x = &args.q.row(block.row(r))[head * c..][..c];
            for (y, &x) in q[r * c..][..c].iter_mut().zip(x) {
                *y = x * args.op.scale;
            }
            if let Some(sinks) = args.op.sinks
                && sinks[head] > f32::NEG_INFINITY
            {
                max[r] = sinks[head];
                total[r * MAX_LANES] = 1.0;
            }
        }
        Self { rows, head_dim: c, value_stride, q, scores, acc, max, total }
    }

    /// Turns the scores of a page into weights and updates `m` and `l`.
    #[inline(always)]
    fn softmax_page<S: Simd>(
        &mut self,
        s: S,
        block: &AttentionBlock<'_>,
        visible: VisibleSlots,
        weights: &mut impl StoreWeights<S>,
    ) {
        let needs_no_adjustment =
            block.args.op.soft_cap.is_none() && block.args.op.slopes.is_none();
        for r in 0..block.tile_rows() {
            let QueryRow { kv_start, kv_len, .. } = block.query(r);
            let to = (kv_len as usize).saturating_sub(visible.first_pos).min(visible.to);
            let from = (kv_start as usize).saturating_sub(visible.first_pos).min(to);
            if !needs_no_adjustment {
                let distance = visible.first_pos as f32 - (kv_len as f32 - 1.0);
                adjust_scores(s, &mut self.scores[r * PAGE_LEN..][..PAGE_LEN], block, r, distance);
            }
            softmax_row(s, self, r, from..to, weights);
        }
    }

    /// Writes `O / l` after the last page.
    #[inline(always)]
    fn finish<S: Simd>(&self, s: S, block: &AttentionBlock<'_>) {
        let c = self.head_dim;
        for r in 0..self.rows {
            let column = block.query_head(r) * c;
            // SAFETY: blocks are disjoint in rows or columns, and one span is alive at a time.
            let out = unsafe { block.out.span(block.row(r), column, c) };
            let (total, _) = s.split(&self.total[r * MAX_LANES..][..S::LANES]);
            let total = s.reduce_sum(total[0]);
            let scale = if total == 0.0 { 0.0 } else { 1.0 / total };
            for (y, &sum) in out.iter_mut().zip(&self.acc[r * self.value_stride..][..c]) {
                *y = sum * scale;
            }
        }
    }
}

impl Kernel for AttentionKernel<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { block, scratch } = self;
        let layout = block.args.kv.layout();
        let c = layout.head_dim;
        let (extra, scratch) = scratch.split_at_mut(block.extra_len());
        let mut state = SoftmaxState::new(&block, block.tile_rows(), scratch);
        for (id, visible) in block.pages() {
            match block.args.kv.head(id, block.kv_head) {
                KvHead::F32(kv) => {
                    add_page(s, &mut state, &block, UnscaledHead::new(kv, c), visible)
                }
                KvHead::F16(kv) if const { !S::HAS_F16 } && !block.is_decode() => {
                    widen(s, kv, extra);
                    add_page(s, &mut state, &block, UnscaledHead::new(&*extra, c), visible);
                }
                KvHead::F16(kv) => {
                    add_page(s, &mut state, &block, UnscaledHead::new(kv, c), visible)
                }
                KvHead::Q8(head) if block.is_decode() => {
                    add_page(s, &mut state, &block, Q8PageHead { head, scratch: extra }, visible);
                }
                KvHead::Q8(head) => {
                    head.widen(extra, visible.from..visible.to);
                    add_page(s, &mut state, &block, UnscaledHead::new(&*extra, c), visible);
                }
            }
        }
        state.finish(s, &block);
    }
}

/// Converts a head of a page, whose length is a multiple of [`PAGE_LEN`].
#[inline(always)]
fn widen<S: Simd>(s: S, from: &[f16], to: &mut [f32]) {
    let vectors = from.chunks_exact(S::LANES).zip(to.chunks_exact_mut(S::LANES));
    for (from, to) in vectors {
        // SAFETY: both have `LANES` values.
        unsafe { s.store(to.as_mut_ptr(), s.load_f16(from.as_ptr())) };
    }
}

/// Adds the visible positions of a page to the online softmax.
#[inline(always)]
fn add_page<S: Simd, H: PageHead>(
    s: S,
    state: &mut SoftmaxState<'_>,
    block: &AttentionBlock<'_>,
    mut head: H,
    visible: VisibleSlots,
) {
    let is_decode = block.is_decode();
    match is_decode {
        true if const { S::N_REGISTERS >= 32 } => head.scores::<S, 4, true>(s, state, visible),
        true => head.scores::<S, 2, true>(s, state, visible),
        false => head.scores::<S, 2, false>(s, state, visible),
    }
    state.softmax_page(s, block, visible, &mut F32Weights);
    match is_decode {
        true if const { S::N_REGISTERS >= 32 } => head.add_values::<S, 4, true>(s, state, visible),
        true => head.add_values::<S, 2, true>(s, state, visible),
        false => head.add_values::<S, 2, false>(s, state, visible),
    }
}

/// `INDEX[p] = p`.
const INDEX: [f32; PAGE_LEN] = {
    let mut index = [0.0; PAGE_LEN];
    let mut i = 0;
    while i < PAGE_LEN {
        index[i] = i as f32;
        i += 1;
    }
    index
};

/// Caps the scores of tile row `r` in a page and adds its head's `ALiBi` bias; `distance` is the page's first position
/// minus the query's.
#[inline(always)]
fn adjust_scores<S: Simd>(
    s: S,
    scores: &mut [f32],
    block: &AttentionBlock<'_>,
    r: usize,
    distance: f32,
) {
    let (scores, _) = s.split_mut(scores);
    if let Some(cap) = block.args.op.soft_cap {
        let (cap, inverse) = (s.splat(cap), s.splat(1.0 / cap));
        for v in &mut *scores {
            *v = s.mul(tanh(s, s.mul(*v, inverse)), cap);
        }
    }
    if let Some(slopes) = block.args.op.slopes {
        let (slope, distance) = (s.splat(slopes[block.query_head(r)]), s.splat(distance));
        let (index, _) = s.split(&INDEX);
        for (v, &i) in scores.iter_mut().zip(index) {
            *v = s.mul_add(slope, s.add(i, distance), *v);
        }
    }
}

/// Destination of the weights `exp(S - m)`.
trait StoreWeights<S: Simd> {
    /// Stores `exp(scores[p] - max)` of tile row `r` in a page; scores exceed `max` by [`RESCALE_THRESHOLD`] at most.
    /// Returns the sums of the weights, one per lane.
    fn store_weights(&mut self, s: S, r: usize, scores: &mut [F32<S>], max: f32) -> F32<S>;

    /// Stores weights of 0 for tile row `r`.
    fn store_zeros(&mut self, r: usize, scores: &mut [f32]);
}

/// f32 weights, which overwrite the scores.
struct F32Weights;

impl<S: Simd> StoreWeights<S> for F32Weights {
    #[inline(always)]
    fn store_weights(&mut self, s: S, _: usize, scores: &mut [F32<S>], max: f32) -> F32<S> {
        let max = s.splat(max);
        let mut sum = s.splat(0.0);
        for v in scores {
            *v = exp(s, s.sub(*v, max));
            sum = s.add(sum, *v);
        }
        sum
    }

    #[inline(always)]
    fn store_zeros(&mut self, _: usize, scores: &mut [f32]) {
        scores.fill(0.0);
    }
}

/// Turns the scores of tile row `r` in a page into weights `exp(S - m)`: 0 outside of the slots `visible`, and if all are −∞.
#[inline(always)]
fn softmax_row<S: Simd>(
    s: S,
    state: &mut SoftmaxState<'_>,
    r: usize,
    visible: Range<usize>,
    weights: &mut impl StoreWeights<S>,
) {
    let stride = state.value_stride;
    let row = &mut state.scores[r * PAGE_LEN..][..PAGE_LEN];
    if visible.is_empty() {
        weights.store_zeros(r, row);
        return;
    }
    row[..visible.start].fill(f32::NEG_INFINITY);
    row[visible.end..].fill(f32::NEG_INFINITY);
    let (scores, _) = s.split_mut(row);
    let mut max = scores[0];
    for &v in &scores[1..] {
        max = s.max(max, v);
    }
    let total = &mut s.split_mut(&mut state.total[r * MAX_LANES..][..S::LANES]).0[0];
    let old = state.max[r];
    if s.any(s.less_than(s.splat(old + RESCALE_THRESHOLD), max)) {
        let new = old.max(s.reduce_max(max));
        state.max[r] = new;
        let rescale = if old == f32::NEG_INFINITY { 0.0 } else { (old - new).exp() };
        *total = s.mul(*total, s.splat(rescale));
        let (acc, _) = s.split_mut(&mut state.acc[r * stride..][..stride]);
        for v in acc {
            *v = s.mul(*v, s.splat(rescale));
        }
    }
    if state.max[r] == f32::NEG_INFINITY {
        return weights.store_zeros(r, row);
    }
    *total = s.add(*total, weights.store_weights(s, r, scores, state.max[r]));
}

#[cfg(test)]
mod tests;
