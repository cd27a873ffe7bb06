//! Attention over pages.
//!
//! Decode, for sequences with few rows in a step: a block of threads has one row, 8 query heads of a KV head and a split of 256
//! positions, whose bounds do not depend on other rows. Prefill, for more adjacent rows: a block has up to 128 query heads of
//! adjacent rows. See `attention_decode.cuh`, `attention_prefill.cuh` and `attention_prefill_warpgroup.cuh`.

use bytemuck::{Pod, Zeroable};

use super::kv::{KvParams, Pool, padded_dim};
use super::rope::{RopeKv, RopeKvParams};
use super::{Output, Rows, launch};
use crate::cuda::{ARCHIVE, CommandList, Gpu, Launch, TensorMap};
use crate::op::{AttentionArgs, KvDType, KvLayout, PAGE_LEN, QueryRow};

/// Maximum channels of a head.
pub const MAX_HEAD_DIM: usize = 256;
/// Minimum adjacent rows of a sequence for prefill; fewer rows are decoded.
const PREFILL_ROWS: usize = 8;
/// Positions of a split.
const SPLIT_LEN: u32 = 256;
/// Query heads of a block of threads in decode.
const DECODE_HEADS: usize = 8;

/// Arguments of [`attention`].
#[derive(Debug, Clone, Copy)]
pub struct Attention<'a> {
    /// `[T, H*C]`.
    pub q: Rows,
    /// Fused rotation and KV write of the only row of a step: its queries replace `q`. Not for f32 pages; the width of heads is a
    /// multiple of four.
    pub rope: Option<RopeKv<'a>>,
    /// KV cache of the layer.
    pub pool: &'a Pool,
    /// Heads and scores.
    pub op: AttentionArgs<u64>,
    /// Division of the rows.
    pub grid: AttentionGrid,
    /// Address of the inputs of the step.
    pub words: u64,
    /// First word of [`AttentionGrid::push_words`].
    pub first_word: usize,
    /// Address of memory of [`AttentionGrid::partial_bytes`].
    pub partials: u64,
    /// Address of memory of [`AttentionGrid::counter_bytes`]: zeros, left as zeros.
    pub counters: u64,
}

/// Division of the query rows of a step among blocks of threads. Steps with equal grids have equal launches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttentionGrid {
    n_rows: usize,
    n_decode: usize,
    n_prefill: usize,
    /// Splits of a row, a power of two.
    n_splits: usize,
    /// Maximum rows of a block.
    block_rows: usize,
    dtype: KvDType,
}

fn sequences(rows: &[QueryRow]) -> impl Iterator<Item = (usize, &[QueryRow])> {
    rows.chunk_by(QueryRow::has_pages_of).scan(0, |next, rows| {
        let first = *next;
        *next += rows.len();
        Some((first, rows))
    })
}

/// Columns of a block in prefill, see `attention_prefill.cuh`.
fn prefill_columns(padded: usize) -> usize {
    if padded <= 128 { 128 } else { 64 }
}

/// Shared memory of a block of prefill with wgmma: five pages and 128 queries; 0 if the device has no such kernel.
fn warpgroup_bytes(gpu: &Gpu, padded: usize, dtype: KvDType) -> usize {
    let has_kernel = gpu.device().has_warpgroups() && dtype == KvDType::F16;
    // Pages are aligned to 1,024 bytes.
    if has_kernel && matches!(padded, 64 | 128) {
        (5 * 4 * PAGE_LEN + 2 * 128) * padded + 1024
    } else {
        0
    }
}

fn is_prefilled(rows: &[QueryRow], dtype: KvDType) -> bool {
    dtype != KvDType::F32 && rows.len() >= PREFILL_ROWS
}

impl AttentionGrid {
    /// Division of `rows`, by `n_heads` query heads.
    #[must_use]
    pub fn new(n_heads: usize, layout: KvLayout, rows: &[QueryRow]) -> Self {
        let group = n_heads / layout.n_kv_heads;
        let columns = prefill_columns(padded_dim(layout.head_dim));
        let block_rows = (columns / group.min(columns)).max(1);
        let (n_rows, dtype) = (rows.len(), layout.dtype);
        let mut grid = Self { n_rows, n_decode: 0, n_prefill: 0, n_splits: 1, block_rows, dtype };
        for (_, rows) in sequences(rows) {
            if is_prefilled(rows, layout.dtype) {
                grid.n_prefill += rows.len().div_ceil(block_rows);
            } else {
                grid.n_decode += rows.len();
                let splits =
                    |row: &QueryRow| row.kv_len.div_ceil(SPLIT_LEN) - row.kv_start / SPLIT_LEN;
                let visible = rows.iter().filter(|row| row.kv_len > row.kv_start);
                let n_splits = visible.map(splits).max().unwrap_or(1) as usize;
                grid.n_splits = grid.n_splits.max(n_splits.next_power_of_two());
            }
        }
        grid
    }

    /// Number of words that [`push_words`](Self::push_words) appends.
    #[must_use]
    pub fn n_words(&self) -> usize {
        4 * (self.n_decode + self.n_prefill) + 2 * self.n_rows
    }

    /// Appends the inputs of the kernels. The page table of the rows starts at word `page_table`.
    ///
    /// ```text
    /// decode : row, first word of the pages, kv_start, kv_len             a row
    /// prefill: first row, rows, first word of the pages, largest kv_len   a block
    /// kv_start, kv_len                                                    a row
    /// ```
    pub fn push_words(&self, rows: &[QueryRow], page_table: usize, words: &mut Vec<u32>) {
        let dtype = self.dtype;
        let table = |row: &QueryRow| page_table as u32 + row.first_page;
        for (first, rows) in sequences(rows).filter(|(_, rows)| !is_prefilled(rows, dtype)) {
            for (i, row) in rows.iter().enumerate() {
                words.extend([(first + i) as u32, table(row), row.kv_start, row.kv_len]);
            }
        }
        for (first, rows) in sequences(rows).filter(|(_, rows)| is_prefilled(rows, dtype)) {
            for (i, block) in rows.chunks(self.block_rows).enumerate() {
                let end = block.iter().map(|row| row.kv_len).max().unwrap_or(0);
                let first = (first + i * self.block_rows) as u32;
                words.extend([first, block.len() as u32, table(&block[0]), end]);
            }
        }
        words.extend(rows.iter().flat_map(|row| [row.kv_start, row.kv_len]));
    }

    /// Bytes of counters.
    #[must_use]
    pub fn counter_bytes(&self, n_heads: usize) -> usize {
        if self.n_splits == 1 { 0 } else { 4 * self.n_decode * n_heads }
    }

    /// Bytes of partial results of splits.
    #[must_use]
    pub fn partial_bytes(&self, n_heads: usize, layout: KvLayout) -> usize {
        let values = padded_dim(layout.head_dim) + 2;
        if self.n_splits == 1 { 0 } else { 4 * self.n_decode * n_heads * self.n_splits * values }
    }
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct AttentionParams {
    q: u64,
    out: Output,
    kv: KvParams,
    slopes: u64,
    sinks: u64,
    words: u64,
    items: u64,
    ranges: u64,
    partials: u64,
    counts: u64,
    n_heads: u32,
    group: u32,
    heads_per_block: u32,
    n_head_blocks: u32,
    q_stride: u32,
    n_splits: u32,
    scale: f32,
    soft_cap: f32,
}

/// Words of padding after [`WarpgroupParams`], which are aligned to 64 bytes in C++.
const PADDING: usize = 8 - size_of::<AttentionParams>() / 8 % 8;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct WarpgroupParams {
    keys: TensorMap,
    values: TensorMap,
    attention: AttentionParams,
    padding: [u64; PADDING],
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct DecodeParams {
    attention: AttentionParams,
    rope: RopeKvParams,
}

/// Names of the kernels of decode and prefill for padded heads.
fn kernels(padded: usize) -> [&'static str; 2] {
    match padded {
        64 => ["decode_64", "prefill_64"],
        96 => ["decode_96", "prefill_96"],
        128 => ["decode_128", "prefill_128"],
        256 => ["decode_256", "prefill_256"],
        _ => panic!("attention: heads of {padded} channels"),
    }
}

/// Attention of all rows.
///
/// # Panics
/// If heads are wider than [`MAX_HEAD_DIM`].
pub fn attention(list: &mut CommandList, out: Output, args: Attention<'_>) {
    let Attention { q, pool, op, grid, .. } = args;
    let n_heads = op.n_heads;
    let layout = pool.layout();
    let (group, n_kv_heads) = (n_heads / layout.n_kv_heads, layout.n_kv_heads);
    let word = |index: usize| args.words + 4 * (args.first_word + index) as u64;
    let mut params = AttentionParams {
        q: q.address,
        out,
        kv: pool.params(),
        slopes: op.slopes.unwrap_or(0),
        sinks: op.sinks.unwrap_or(0),
        words: args.words,
        items: word(0),
        ranges: word(4 * (grid.n_decode + grid.n_prefill)),
        partials: args.partials,
        counts: args.counters,
        n_heads: n_heads as u32,
        group: group as u32,
        heads_per_block: 0,
        n_head_blocks: 0,
        q_stride: q.stride as u32,
        n_splits: grid.n_splits as u32,
        scale: op.scale,
        soft_cap: op.soft_cap.unwrap_or(0.0),
    };
    if layout.dtype == KvDType::F32 {
        let name = ("attention_f32", "attention_f32");
        launch(list, name, [grid.n_decode, n_heads, 1], 128, &params);
        return;
    }
    let module = if layout.dtype == KvDType::F16 { "attention_f16" } else { "attention_q8" };
    let padded = padded_dim(layout.head_dim);
    let [decode, prefill] = kernels(padded);
    let blocks_of_heads = |heads_per_block: usize, params: &mut AttentionParams| {
        let n_blocks = group.div_ceil(heads_per_block);
        params.heads_per_block = heads_per_block as u32;
        params.n_head_blocks = n_blocks as u32;
        n_kv_heads * n_blocks
    };
    let y = blocks_of_heads(group.min(DECODE_HEADS), &mut params);
    let rope = args.rope.map_or_else(RopeKvParams::zeroed, |rope| rope.params());
    let decode_params = DecodeParams { attention: params, rope };
    launch(list, (module, decode), [grid.n_decode, y, grid.n_splits], 128, &decode_params);
    let y = blocks_of_heads(group.min(prefill_columns(padded)), &mut params);
    params.items = word(4 * grid.n_decode);
    let shared_bytes = warpgroup_bytes(list.gpu(), padded, layout.dtype);
    let kernel = list.gpu().kernel(&ARCHIVE, module, prefill, shared_bytes);
    let launch = Launch { grid: [grid.n_prefill, y, 1], threads: 256, shared_bytes };
    if shared_bytes == 0 {
        return list.launch(kernel, launch, &params);
    }
    let boxes = pool.boxes(list.gpu());
    let (kernel, [keys, values]) = match boxes {
        Ok(boxes) => (kernel, boxes),
        Err(error) => (Err(error), [TensorMap::zeroed(); 2]),
    };
    list.launch(
        kernel,
        launch,
        &WarpgroupParams { keys, values, attention: params, padding: [0; PADDING] },
    );
}
