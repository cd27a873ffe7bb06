//! Attention over paged keys and values: the only attention op. Self-attention of a decoder
//! (causal), cross-attention and an encoder's self-attention differ in what a row may see.
//!
//! A task takes a block of query rows of one sequence and one KV head. It walks the sequence's
//! pages once: scores of the block against a page, softmax with a running maximum, and the
//! weighted values, all while the page is in cache (Dao et al. 2022, algorithm 1). Query heads
//! that share a KV head are rows of the same block, so that a decode step reads each page once.
//! Pages of 8-bit values are widened to f32 once for the whole block.

mod head;
#[cfg(target_arch = "x86_64")]
mod rounded;

use std::ops::Range;

use self::head::{Head, Plain, Scaled, Seen};
use super::kv::{KvDType, KvHead, KvLayout, KvPool, PAGE_LEN};
use super::math::{exp, tanh};
use super::matrix::{MatMut, MatRef, SharedMut};
use crate::scratch::with_scratch;
use crate::simd::{F32, Kernel, Simd};
use crate::{Cpu, Isa};

/// Rows of a block: enough that a page read from the second-level cache is used many times.
const BLOCK_ROWS: usize = 48;
/// Rows of a block for which pages are rounded: enough that rounding does not count.
const ROUNDED_BLOCK_ROWS: usize = 96;
/// Rows whose sums are kept in twice as many vectors each, where there are registers for them.
const FEW_ROWS: usize = 8;
/// Floats of scratch that live on the stack, enough for one query row of the usual head widths,
/// so that a decode step needs no memory of the thread.
const STACK_LEN: usize = 2048;

/// Lanes of the widest vector.
const MAX_LANES: usize = 16;
/// How far a score may exceed the maximum that the sums are relative to before these are scaled anew: weights stay
/// below `e^8`, and most pages need no horizontal maximum.
const MAX_GROWTH: f32 = 8.0;

/// Multiplications below which starting threads costs more than it gains.
const MIN_PARALLEL: usize = 128 << 10;

/// What one query row may look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueryRow {
    /// Where the sequence's pages begin in the page table.
    pub first_page: u32,
    /// How many there are.
    pub n_pages: u32,
    /// First visible position: 0, or where a sliding window begins.
    pub kv_start: u32,
    /// One past the last visible position: `pos + 1` for causal attention.
    pub kv_len: u32,
}

impl QueryRow {
    /// Whether the pages are the same, as those of rows of one sequence are.
    pub(crate) fn has_pages_of(&self, other: &Self) -> bool {
        (self.first_page, self.n_pages) == (other.first_page, other.n_pages)
    }
}

/// Arguments of [`attention`].
#[derive(Debug, Clone, Copy)]
pub struct Attention<'a> {
    /// `[T, H*C]`.
    pub q: MatRef<'a>,
    /// Keys and values.
    pub kv: &'a KvPool,
    /// Query heads `H`, a multiple of the KV heads `G`; head `h` reads KV head `h / (H / G)`.
    pub n_heads: usize,
    /// Factor of the scores, usually `1/sqrt(C)`.
    pub scale: f32,
    /// Scores become `cap * tanh(score / cap)` before masking.
    pub soft_cap: Option<f32>,
    /// `[H]`: `ALiBi` slopes; `slope * (pos_k - (kv_len - 1))` is added to a score.
    pub slopes: Option<&'a [f32]>,
    /// `[H]`: a logit of each head that takes part in the softmax and has no value.
    pub sinks: Option<&'a [f32]>,
    /// One entry a query row; adjacent rows with the same pages are computed together.
    pub rows: &'a [QueryRow],
    /// The page lists of all sequences.
    pub page_table: &'a [u32],
    /// Precision of the factors in blocks of many rows.
    pub precision: Precision,
}

/// Factors of the attention products `Q·Kᵀ` and `P·V` in blocks of many rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precision {
    /// f32.
    #[default]
    F32,
    /// bf16 where quantized matmuls use bf16 too (AMX), else f32: there a prompt in one batch gives the same bits as
    /// token by token.
    AsProducts,
    /// bf16 where that is faster.
    Bf16,
}

/// `out[t,h] = sum_p softmax_p(scale * q[t,h] · k[p,g]) * v[p,g]` over the positions
/// `kv_start .. kv_len` of the row's pages.
///
/// Shapes: `out` = `[T, H*C]`. Numerics: f32 sums, `exp` within 2 ULP, `tanh` within 4; with
/// [`Attention::precision`] the factors of a product may each be off by `2^-8` of themselves. Slots
/// before or beyond every position that the rows of a sequence see are not used, whatever they
/// hold. A row that sees nothing gives zeros.
///
/// # Panics
/// If the shapes do not fit, or a row names pages outside the table or the pool.
#[track_caller]
pub fn attention(cpu: &Cpu, out: MatMut<'_>, args: Attention<'_>) {
    let out = out.checked();
    let group = check(&out, &args);
    if args.rows.is_empty() || args.n_heads == 0 {
        return;
    }
    let out = out.shared();
    let rounds = rounds(cpu.isa, args.kv.layout(), args.precision);
    let n_block_rows = if rounds { ROUNDED_BLOCK_ROWS } else { BLOCK_ROWS };
    let block_rows = (n_block_rows / group).max(1);
    let n_kv_heads = args.kv.layout().n_kv_heads;
    // A block ends after `block_rows` rows or where the pages change; blocks are found by walking
    // the rows, so that nothing is stored.
    let n_blocks = Blocks::new(args.rows, block_rows).count();
    // Where there are fewer of them than threads, the query heads of a KV head are shared out.
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
        let block = Block { out, args, kv_head, first_head, n_heads, first, n_rows };
        #[cfg(target_arch = "x86_64")]
        if rounds && !block.is_few() {
            return rounded::run(cpu.isa, block);
        }
        let len = block.scratch_len(block.tile_rows());
        if len <= STACK_LEN {
            cpu.isa.dispatch(Run { block, scratch: &mut [0.0; STACK_LEN][..len] });
        } else {
            with_scratch(len, |scratch| cpu.isa.dispatch(Run { block, scratch }));
        }
    };
    let n_tasks = n_blocks * n_kv_heads * n_parts;
    if is_small {
        (0..n_tasks).for_each(run);
    } else {
        cpu.threads.run(n_tasks, run);
    }
}

/// Whether blocks of many rows are rounded to bf16.
fn rounds(isa: Isa, layout: KvLayout, precision: Precision) -> bool {
    #[cfg(target_arch = "x86_64")]
    let unit = rounded::unit(isa, precision);
    #[cfg(not(target_arch = "x86_64"))]
    let unit = {
        let _ = (isa, precision);
        None
    };
    let fits = |unit: usize| layout.head_dim.is_multiple_of(unit);
    layout.dtype != KvDType::Q8_0 && unit.is_some_and(fits)
}

/// Multiplications of the whole op.
fn work(args: &Attention<'_>) -> usize {
    let seen = |row: &QueryRow| row.kv_len.saturating_sub(row.kv_start) as usize;
    let positions: usize = args.rows.iter().map(seen).sum();
    2 * positions * args.n_heads * args.kv.layout().head_dim
}

/// Checks the shapes; returns the query heads of a KV head.
#[track_caller]
fn check(out: &MatMut<'_>, args: &Attention<'_>) -> usize {
    let (q, layout) = (args.q.checked(), args.kv.layout());
    let width = args.n_heads * layout.head_dim;
    assert!(
        layout.n_kv_heads > 0 && args.n_heads.is_multiple_of(layout.n_kv_heads),
        "attention: {} heads are no multiple of {} kv heads",
        args.n_heads,
        layout.n_kv_heads
    );
    assert_eq!((q.rows, q.cols), (args.rows.len(), width), "attention: shape of the queries");
    assert_eq!((out.rows, out.cols), (args.rows.len(), width), "attention: shape of the output");
    for (what, values) in [("slope", args.slopes), ("sink", args.sinks)] {
        let len = values.map_or(args.n_heads, <[f32]>::len);
        assert_eq!(len, args.n_heads, "attention: expected one {what} a head");
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
                assert!((page as usize) < args.kv.n_pages(), "attention: page {page} not in pool");
            }
        }
    }
    args.n_heads / layout.n_kv_heads
}

/// Blocks of adjacent rows with the same pages, as (first row, number of rows).
struct Blocks<'a> {
    rows: &'a [QueryRow],
    block_rows: usize,
    next: usize,
}

impl<'a> Blocks<'a> {
    fn new(rows: &'a [QueryRow], block_rows: usize) -> Self {
        Self { rows, block_rows, next: 0 }
    }
}

impl Iterator for Blocks<'_> {
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
    Blocks::new(rows, block_rows).nth(index)
}

/// Rows `first .. first + n_rows` of the queries at heads that read KV head `kv_head`.
#[derive(Clone, Copy)]
struct Block<'a> {
    out: SharedMut<'a>,
    args: Attention<'a>,
    kv_head: usize,
    /// First of the query heads.
    first_head: usize,
    n_heads: usize,
    first: usize,
    n_rows: usize,
}

impl Block<'_> {
    /// Rows of the tile: each query row once a query head.
    fn tile_rows(&self) -> usize {
        self.n_rows * self.n_heads
    }

    /// With room for `rows` rows, at least those of the tile.
    fn scratch_len(&self, rows: usize) -> usize {
        let layout = self.args.kv.layout();
        let state = layout.head_dim + PAGE_LEN + layout.value_stride() + 1 + MAX_LANES;
        rows * state + self.extra_len()
    }

    /// Scratch for 8-bit pages: a head of a page widened, or what [`Scaled`] wants.
    fn extra_len(&self) -> usize {
        let layout = self.args.kv.layout();
        match layout.dtype {
            KvDType::Q8_0 if self.is_few() => self.tile_rows() * PAGE_LEN,
            KvDType::Q8_0 => layout.head_len(),
            KvDType::F32 | KvDType::F16 => 0,
        }
    }

    /// Whether reading the page takes longer than multiplying with it.
    fn is_few(&self) -> bool {
        self.tile_rows() <= FEW_ROWS
    }

    /// The positions that any row sees, as one range.
    fn visible(&self) -> Range<usize> {
        let rows = &self.args.rows[self.first..][..self.n_rows];
        let seen = rows.iter().filter(|row| row.kv_start < row.kv_len);
        let start = seen.clone().map(|row| row.kv_start).min().unwrap_or(0);
        let end = seen.map(|row| row.kv_len).max().unwrap_or(0);
        start as usize..end as usize
    }

    fn query(&self, r: usize) -> QueryRow {
        self.args.rows[self.row(r)]
    }

    /// The query row of tile row `r`.
    fn row(&self, r: usize) -> usize {
        self.first + r / self.n_heads
    }

    /// The pages that any row sees, and what of them.
    fn pages(&self) -> impl Iterator<Item = (u32, Seen)> {
        let visible = self.visible();
        let args = &self.args;
        let page_bytes = args.kv.layout().page_bytes() as isize;
        let table = &args.page_table[args.rows[self.first].first_page as usize..];
        (visible.start / PAGE_LEN..visible.end.div_ceil(PAGE_LEN)).map(move |page| {
            let start = page * PAGE_LEN;
            let from = visible.start.saturating_sub(start);
            let to = PAGE_LEN.min(visible.end - start);
            let ahead = if start + PAGE_LEN < visible.end {
                (table[page + 1] as isize - table[page] as isize) * page_bytes
            } else {
                0
            };
            (table[page], Seen { start, from, to, ahead })
        })
    }

    /// The query head of tile row `r`.
    fn query_head(&self, r: usize) -> usize {
        self.first_head + r % self.n_heads
    }
}

struct Run<'a, 's> {
    block: Block<'a>,
    scratch: &'s mut [f32],
}

/// State of the running softmax of a block; each slice holds one entry or row a tile row, and may have room for more.
struct State<'s> {
    rows: usize,
    /// Length of a row of `q`.
    head_dim: usize,
    /// Length of a row of `sums`.
    value_stride: usize,
    q: &'s mut [f32],
    scores: &'s mut [f32],
    sums: &'s mut [f32],
    max: &'s mut [f32],
    /// A vector, whose lanes add up to the row's total.
    total: &'s mut [f32],
}

impl<'s> State<'s> {
    /// Before the first page, with room for `room` rows: scaled queries, and of the softmax only what the sinks add.
    #[inline(always)]
    fn new(block: &Block<'_>, room: usize, scratch: &'s mut [f32]) -> Self {
        let (layout, args) = (block.args.kv.layout(), &block.args);
        let (rows, c) = (block.tile_rows(), layout.head_dim);
        let value_stride = layout.value_stride();
        let (q, rest) = scratch.split_at_mut(room * c);
        let (scores, rest) = rest.split_at_mut(room * PAGE_LEN);
        let (sums, rest) = rest.split_at_mut(room * value_stride);
        let (max, total) = rest.split_at_mut(room);
        sums.fill(0.0);
        max.fill(f32::NEG_INFINITY);
        total.fill(0.0);
        for r in 0..rows {
            let head = block.query_head(r);
            let x = &args.q.row(block.row(r))[head * c..][..c];
            for (y, &x) in q[r * c..][..c].iter_mut().zip(x) {
                *y = x * args.scale;
            }
            if let Some(sinks) = args.sinks
                && sinks[head] > f32::NEG_INFINITY
            {
                max[r] = sinks[head];
                total[r * MAX_LANES] = 1.0;
            }
        }
        Self { rows, head_dim: c, value_stride, q, scores, sums, max, total }
    }

    /// Turns the scores of a page into weights.
    #[inline(always)]
    fn weigh<S: Simd>(
        &mut self,
        s: S,
        block: &Block<'_>,
        seen: Seen,
        weights: &mut impl Weights<S>,
    ) {
        let is_plain = block.args.soft_cap.is_none() && block.args.slopes.is_none();
        for r in 0..block.tile_rows() {
            let QueryRow { kv_start, kv_len, .. } = block.query(r);
            let seen_to = (kv_len as usize).saturating_sub(seen.start).min(seen.to);
            let seen_from = (kv_start as usize).saturating_sub(seen.start).min(seen_to);
            if !is_plain {
                let distance = seen.start as f32 - (kv_len as f32 - 1.0);
                adjust_scores(s, &mut self.scores[r * PAGE_LEN..][..PAGE_LEN], block, r, distance);
            }
            softmax_row(s, self, r, seen_from..seen_to, weights);
        }
    }

    /// After the last page: writes the weighted means.
    #[inline(always)]
    fn finish<S: Simd>(&self, s: S, block: &Block<'_>) {
        let c = self.head_dim;
        for r in 0..self.rows {
            let column = block.query_head(r) * c;
            // SAFETY: these columns of these rows belong to this block alone.
            let out = unsafe { block.out.span(block.row(r), column, c) };
            let (total, _) = s.split(&self.total[r * MAX_LANES..][..S::LANES]);
            let total = s.reduce_sum(total[0]);
            let scale = if total == 0.0 { 0.0 } else { 1.0 / total };
            for (y, &sum) in out.iter_mut().zip(&self.sums[r * self.value_stride..][..c]) {
                *y = sum * scale;
            }
        }
    }
}

impl Kernel for Run<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { block, scratch } = self;
        let layout = block.args.kv.layout();
        let c = layout.head_dim;
        let (extra, scratch) = scratch.split_at_mut(block.extra_len());
        let mut state = State::new(&block, block.tile_rows(), scratch);
        for (id, seen) in block.pages() {
            match block.args.kv.head(id, block.kv_head) {
                KvHead::F32(kv) => add_page(s, &mut state, &block, Plain::new(kv, c), seen),
                KvHead::F16(kv) => add_page(s, &mut state, &block, Plain::new(kv, c), seen),
                KvHead::Q8(head) if block.is_few() => {
                    add_page(s, &mut state, &block, Scaled { head, scratch: extra }, seen);
                }
                KvHead::Q8(head) => {
                    head.widen(extra, seen.from..seen.to);
                    add_page(s, &mut state, &block, Plain::new(&*extra, c), seen);
                }
            }
        }
        state.finish(s, &block);
    }
}

/// Adds the visible positions of a page to the running softmax.
#[inline(always)]
fn add_page<S: Simd, H: Head>(
    s: S,
    state: &mut State<'_>,
    block: &Block<'_>,
    mut head: H,
    seen: Seen,
) {
    let few = block.is_few();
    match few {
        true if const { S::N_REGISTERS >= 32 } => head.scores::<S, 4, true>(s, state, seen),
        true => head.scores::<S, 2, true>(s, state, seen),
        false => head.scores::<S, 2, false>(s, state, seen),
    }
    state.weigh(s, block, seen, &mut InPlace);
    match few {
        true if const { S::N_REGISTERS >= 32 } => head.add_values::<S, 4, true>(s, state, seen),
        true => head.add_values::<S, 2, true>(s, state, seen),
        false => head.add_values::<S, 2, false>(s, state, seen),
    }
}

/// The index of each position in its page.
const INDEX: [f32; PAGE_LEN] = {
    let mut index = [0.0; PAGE_LEN];
    let mut i = 0;
    while i < PAGE_LEN {
        index[i] = i as f32;
        i += 1;
    }
    index
};

/// Caps the scores of tile row `r` and adds its head's slope; `distance` is that of the page's
/// first position from the query's.
#[inline(always)]
fn adjust_scores<S: Simd>(s: S, scores: &mut [f32], block: &Block<'_>, r: usize, distance: f32) {
    let (scores, _) = s.split_mut(scores);
    if let Some(cap) = block.args.soft_cap {
        let (cap, inverse) = (s.splat(cap), s.splat(1.0 / cap));
        for v in &mut *scores {
            *v = s.mul(tanh(s, s.mul(*v, inverse)), cap);
        }
    }
    if let Some(slopes) = block.args.slopes {
        let (slope, distance) = (s.splat(slopes[block.query_head(r)]), s.splat(distance));
        let (index, _) = s.split(&INDEX);
        for (v, &i) in scores.iter_mut().zip(index) {
            *v = s.mul_add(slope, s.add(i, distance), *v);
        }
    }
}

/// Where weights go.
trait Weights<S: Simd> {
    /// Takes weights of `e` to the difference of each of `scores`, those of row `r` in a page, from `max`, which
    /// they exceed by [`MAX_GROWTH`] at most. Returns the sums of the weights, lane by lane.
    fn take(&mut self, s: S, r: usize, scores: &mut [F32<S>], max: f32) -> F32<S>;

    /// Takes weights of 0 for row `r`.
    fn take_none(&mut self, r: usize, scores: &mut [f32]);
}

/// To where the scores were.
struct InPlace;

impl<S: Simd> Weights<S> for InPlace {
    #[inline(always)]
    fn take(&mut self, s: S, _: usize, scores: &mut [F32<S>], max: f32) -> F32<S> {
        let max = s.splat(max);
        let mut sum = s.splat(0.0);
        for v in scores {
            *v = exp(s, s.sub(*v, max));
            sum = s.add(sum, *v);
        }
        sum
    }

    #[inline(always)]
    fn take_none(&mut self, _: usize, scores: &mut [f32]) {
        scores.fill(0.0);
    }
}

/// Turns the scores of row `r` into weights relative to the running maximum; only the positions
/// `seen` of the page are visible, the others get weight 0.
#[inline(always)]
fn softmax_row<S: Simd>(
    s: S,
    state: &mut State<'_>,
    r: usize,
    seen: Range<usize>,
    weights: &mut impl Weights<S>,
) {
    let stride = state.value_stride;
    let row = &mut state.scores[r * PAGE_LEN..][..PAGE_LEN];
    if seen.is_empty() {
        weights.take_none(r, row);
        return;
    }
    row[..seen.start].fill(f32::NEG_INFINITY);
    row[seen.end..].fill(f32::NEG_INFINITY);
    let (scores, _) = s.split_mut(row);
    let mut max = scores[0];
    for &v in &scores[1..] {
        max = s.max(max, v);
    }
    let total = &mut s.split_mut(&mut state.total[r * MAX_LANES..][..S::LANES]).0[0];
    let old = state.max[r];
    if s.any(s.less_than(s.splat(old + MAX_GROWTH), max)) {
        let new = old.max(s.reduce_max(max));
        state.max[r] = new;
        let factor = if old == f32::NEG_INFINITY { 0.0 } else { (old - new).exp() };
        *total = s.mul(*total, s.splat(factor));
        let (sums, _) = s.split_mut(&mut state.sums[r * stride..][..stride]);
        for v in sums {
            *v = s.mul(*v, s.splat(factor));
        }
    }
    *total = s.add(*total, weights.take(s, r, scores, state.max[r]));
}

#[cfg(test)]
mod tests;
