//! Softmax attention over the paged KV cache.
//!
//! | kernel | rows |
//! |---|---|
//! | `attention_decode` | up to 8 |
//! | `attention_prefill` | 16 or more a sequence, f16 pages, devices with cooperative matrices |
//! | this file, `attention.wgsl` | all others |
//!
//! A workgroup takes a block of adjacent query rows with the same pages, and one KV head. Its *slots* are the pairs of
//! a row and a query head of that KV head. It walks the pages once with an online softmax (Dao et al. 2022,
//! algorithm 1). Few blocks are split along the pages (split-K); `attention_merge.wgsl` combines the splits.

use super::kv::{GpuKvPool, KvWords, dtype_name, elements_per_word, kv_reader};
use super::{
    ACTIVATIONS, CopyWriter, GpuRows, KernelSpec, attention_decode, attention_prefill, check_len,
    kernel_source,
};
use crate::cpu::{KvDType, PAGE_LEN, QueryRow};
use crate::kernel_params;
use crate::wgpu::{Access, Bind, Gpu, GpuBuffer, KernelParams, Source, Variant};

/// Invocations in a workgroup, one a position of a page.
const WORKGROUP: u32 = PAGE_LEN as u32;
/// Workgroups below which blocks are split along the pages.
const MIN_GROUPS: usize = 256;
/// Widest head: 4 slots of it fit the workgroup memory of any adapter.
pub const MAX_HEAD_DIM: usize = 512;

/// Arguments of [`attention`].
#[derive(Debug, Clone, Copy)]
pub struct Attention<'a> {
    /// `[T, H*C]`.
    pub q: GpuRows<'a>,
    /// KV cache of the layer.
    pub kv: &'a GpuKvPool,
    /// Query heads `H`, a multiple of the KV heads.
    pub n_heads: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// Scores become `cap * tanh(score / cap)`.
    pub soft_cap: Option<f32>,
    /// `[H]`: `slope * (pos_k - (kv_len - 1))` is added to a score.
    pub slopes: Option<&'a GpuBuffer>,
    /// `[H]`: attention sink, a logit in the softmax without a value.
    pub sinks: Option<&'a GpuBuffer>,
    /// Visible positions and pages of each query row, `[T]`.
    pub rows: &'a [QueryRow],
    /// Page table of all sequences.
    pub page_table: &'a [u32],
}

kernel_params! {
    /// Parameters of the attention kernels.
    pub(super) struct AttentionParams {
        pub(super) n_heads: u32,
        /// Query heads per KV head.
        pub(super) group: u32,
        pub(super) head_dim: u32,
        pub(super) row_words: u32,
        pub(super) head_words: u32,
        pub(super) page_words: u32,
        pub(super) q_offset: u32,
        pub(super) q_stride: u32,
        /// First word of the query rows in the data.
        pub(super) rows: u32,
        /// First word of the page table in the data.
        pub(super) page_table: u32,
        /// `HAS_*` bits.
        pub(super) flags: u32,
        pub(super) scale: f32,
        pub(super) soft_cap: f32,
        /// First word of the query blocks in the data; not for decode.
        pub(super) blocks: u32,
        pub(super) heads_per_block: u32,
        pub(super) n_splits: u32,
        /// Pages (`attention.wgsl`) or positions (decode) of a split.
        pub(super) per_split: u32,
    }
}

impl AttentionParams {
    /// Parameters without splits, one query head a workgroup.
    pub(super) fn new(args: &Attention<'_>, group: usize) -> Self {
        let (layout, words) = (args.kv.layout, KvWords::new(args.kv.layout));
        let flag = |set: bool, bit: u32| if set { bit } else { 0 };
        Self {
            n_heads: args.n_heads as u32,
            group: group as u32,
            head_dim: layout.head_dim as u32,
            row_words: words.row as u32,
            head_words: words.head as u32,
            page_words: words.page as u32,
            q_offset: args.q.offset as u32,
            q_stride: args.q.stride as u32,
            rows: 0,
            page_table: 0,
            flags: flag(args.soft_cap.is_some(), HAS_SOFT_CAP)
                | flag(args.slopes.is_some(), HAS_SLOPES)
                | flag(args.sinks.is_some(), HAS_SINKS),
            scale: args.scale,
            soft_cap: args.soft_cap.unwrap_or(1.0),
            blocks: 0,
            heads_per_block: 1,
            n_splits: 1,
            per_split: 0,
        }
    }
}

/// Bindings of [`ACCESS`].
pub(super) fn binds<'a>(args: &Attention<'a>, out: &'a GpuBuffer) -> [Bind<'a>; 6] {
    [
        Bind::Data,
        args.q.buffer.into(),
        Bind::Buffer(&args.kv.buffer),
        args.slopes.into(),
        args.sinks.into(),
        Bind::Buffer(out),
    ]
}

/// Bits of `flags`.
const HAS_SOFT_CAP: u32 = 1;
const HAS_SLOPES: u32 = 2;
const HAS_SINKS: u32 = 4;
/// Write a cached copy of the output: q8 in decode, f16 in prefill.
pub(super) const HAS_COPY: u32 = 8;

/// Appends `Params`, the bits of `flags` and the bindings of [`ACCESS`].
pub(super) fn with_params(source: Source) -> Source {
    source
        .constant("HAS_SOFT_CAP", HAS_SOFT_CAP)
        .constant("HAS_SLOPES", HAS_SLOPES)
        .constant("HAS_SINKS", HAS_SINKS)
        .constant("HAS_COPY", HAS_COPY)
        .file(include_str!("attention_params.wgsl"))
}

kernel_params! {
    struct MergeParams {
        n_rows: u32,
        n_heads: u32,
        head_dim: u32,
        n_splits: u32,
        has_sinks: u32,
        has_q8_copy: u32,
    }
}

/// Data, queries, pages, slopes, sinks, output.
pub(super) const ACCESS: &[Access] =
    &[Access::Read, Access::Read, Access::Read, Access::Read, Access::Read, Access::Write];
/// [`ACCESS`] and a cached copy of the output.
pub(super) const ACCESS_WITH_COPY: &[Access] =
    &Access::concat::<{ ACCESS.len() + 1 }>(ACCESS, &[Access::Write]);
pub(super) const MERGE: KernelSpec = KernelSpec {
    name: "attention_merge",
    params: MergeParams::LAYOUT,
    access: &[Access::Read, Access::Read, Access::Write, Access::Write],
    workgroup: WORKGROUP,
    files: &[ACTIVATIONS, include_str!("attention_merge.wgsl")],
    copy_writer: CopyWriter::Q8,
};

/// For `slots` pairs of row and head, heads of at most `WORKGROUP * words` words.
fn source(dtype: KvDType, slots: u32, words: u32, variant: Variant) -> Source {
    let name = format!("attention-{}-{slots}x{words}-{}", dtype_name(dtype), variant.name());
    let source = kernel_source(name, AttentionParams::LAYOUT, ACCESS, variant, WORKGROUP)
        .constant("SLOTS", slots)
        .constant("LANE_WORDS", words)
        .constant("HAS_SCALES", u32::from(dtype == KvDType::Q8_0))
        .file(ACTIVATIONS)
        .file(include_str!("f16_bits.wgsl"))
        .file(kv_reader(dtype));
    with_params(source).file(include_str!("attention.wgsl"))
}

pub(super) fn sources(variant: Variant) -> Vec<Source> {
    let mut all = Vec::new();
    for dtype in [KvDType::F32, KvDType::F16, KvDType::Q8_0] {
        for (slots, words) in [(4, 1), (8, 2), (16, 1), (4, 8)] {
            all.push(source(dtype, slots, words, variant));
        }
    }
    all
}

/// Adjacent query rows with the same pages.
#[derive(Debug, Clone, Copy)]
struct QueryBlock {
    first_row: usize,
    n_rows: usize,
    /// Range of the pages visible to any of the rows.
    pages: (usize, usize),
}

/// Cuts the rows into blocks of at most `max_rows`.
fn query_blocks(rows: &[QueryRow], max_rows: usize) -> Vec<QueryBlock> {
    let mut blocks = Vec::new();
    let mut first_row = 0;
    for sequence in rows.chunk_by(QueryRow::has_pages_of) {
        for block in sequence.chunks(max_rows) {
            let visible = block.iter().filter(|row| row.kv_len > row.kv_start);
            let from = visible.clone().map(|row| row.kv_start as usize / PAGE_LEN).min();
            let to = visible.map(|row| (row.kv_len as usize).div_ceil(PAGE_LEN)).max();
            let pages = (from.unwrap_or(0), to.unwrap_or(0));
            blocks.push(QueryBlock { first_row, n_rows: block.len(), pages });
            first_row += block.len();
        }
    }
    blocks
}

/// Checks the shapes; returns the query heads per KV head.
#[track_caller]
fn check(out: &GpuBuffer, args: &Attention<'_>) -> usize {
    let (q, layout) = (args.q.checked(), args.kv.layout);
    let width = args.n_heads * layout.head_dim;
    let (n_heads, n_kv_heads) = (args.n_heads, layout.n_kv_heads);
    assert!(
        n_kv_heads > 0 && n_heads.is_multiple_of(n_kv_heads),
        "attention: {n_heads} heads are no multiple of {n_kv_heads} kv heads"
    );
    assert_eq!((q.rows, q.cols), (args.rows.len(), width), "attention: shape of the queries");
    check_len("attention", out, q.rows * q.cols);
    args.slopes.inspect(|slopes| check_len("attention", slopes, n_heads));
    args.sinks.inspect(|sinks| check_len("attention", sinks, n_heads));
    let head_dim = layout.head_dim;
    assert!(head_dim <= MAX_HEAD_DIM, "attention: heads of {head_dim} channels");
    for row in args.rows {
        let end = row.first_page as usize + row.n_pages as usize;
        assert!(
            end <= args.page_table.len() && row.kv_len as usize <= row.n_pages as usize * PAGE_LEN,
            "attention: {row:?} does not fit a page table of {}",
            args.page_table.len()
        );
    }
    let n_pages = args.kv.n_pages();
    let inside = args.page_table.iter().all(|page| (*page as usize) < n_pages);
    assert!(inside, "attention: a page is not in the pool of {n_pages}");
    n_heads / n_kv_heads
}

/// Tiling of [`attention`].
#[derive(Debug)]
struct Tiling {
    slots: usize,
    /// Words of a head that an invocation sums.
    words: usize,
    heads_per_block: usize,
    blocks: Vec<QueryBlock>,
    pages_per_split: usize,
    n_splits: usize,
}

impl Tiling {
    fn new(args: &Attention<'_>, group: usize) -> Self {
        let (rows, layout) = (args.rows, args.kv.layout);
        let longest = rows.chunk_by(QueryRow::has_pages_of).map(<[_]>::len).max().unwrap_or(1);
        let words = KvWords::new(layout).row.div_ceil(WORKGROUP as usize);
        // Queries, weights and sums of the slots fit 16 KiB of workgroup memory.
        let channels = words * WORKGROUP as usize * elements_per_word(layout.dtype);
        let max_slots = match channels {
            ..=128 => 16,
            129..=256 => 8,
            _ => 4,
        };
        let slots = (group * longest).next_power_of_two().clamp(4, max_slots);
        let heads_per_block = group.min(slots);
        let blocks = query_blocks(rows, slots / heads_per_block);
        let n_groups = blocks.len() * layout.n_kv_heads * group.div_ceil(heads_per_block);
        let max_pages = blocks.iter().map(|block| block.pages.1 - block.pages.0).max();
        let max_pages = max_pages.unwrap_or(0).max(1);
        let min_splits = MIN_GROUPS.div_ceil(n_groups).clamp(1, max_pages);
        let pages_per_split = max_pages.div_ceil(min_splits);
        let n_splits = max_pages.div_ceil(pages_per_split);
        Self { slots, words, heads_per_block, blocks, pages_per_split, n_splits }
    }
}

/// Data of the kernel: blocks (first row, rows, range of the page table, first page), rows (`kv_start`, `kv_len`), page
/// table. Returns it with the first words of rows and page table.
fn data(blocks: &[QueryBlock], rows: &[QueryRow], page_table: &[u32]) -> (Vec<u32>, usize, usize) {
    let mut data = Vec::with_capacity(5 * blocks.len() + 2 * rows.len() + page_table.len());
    for block in blocks {
        let table = rows[block.first_row].first_page as usize;
        let (from, to) = block.pages;
        let words = [block.first_row, block.n_rows, table + from, table + to, from];
        data.extend(words.map(|word| word as u32));
    }
    let rows_at = data.len();
    data.extend(rows.iter().flat_map(|row| [row.kv_start, row.kv_len]));
    let table_at = data.len();
    data.extend_from_slice(page_table);
    (data, rows_at, table_at)
}

/// Softmax attention of every query row over the positions `kv_start .. kv_len` of its pages. Shapes: `q`, `out` =
/// `[T, H*C]`, `out` packed. A row without visible positions gives zeros.
///
/// # Panics
/// If the shapes do not fit, or a row names pages outside the table or the pool.
#[track_caller]
pub fn attention(gpu: &Gpu, out: &GpuBuffer, args: Attention<'_>) {
    let group = check(out, &args);
    let Attention { kv, n_heads, rows, page_table, .. } = args;
    if rows.is_empty() || n_heads == 0 {
        return;
    }
    if rows.len() <= attention_decode::MAX_ROWS {
        return attention_decode::attention(gpu, out, &args, group);
    }
    if attention_prefill::supports(gpu, &args) {
        return attention_prefill::attention(gpu, out, &args, group);
    }
    let layout = kv.layout;
    let Tiling { slots, words, heads_per_block, blocks, pages_per_split, n_splits } =
        Tiling::new(&args, group);
    let (data, rows_at, table_at) = data(&blocks, rows, page_table);
    let key = [slots as u32, words as u32, elements_per_word(layout.dtype) as u32, 0];
    let kernel = gpu.kernel(("attention", key), || {
        source(layout.dtype, slots as u32, words as u32, gpu.variant())
    });
    let scratch = if n_splits > 1 {
        // Bound for any number of pages, so that the scratch buffer does not grow with the context.
        let n_partials = rows.len() * n_heads * n_splits;
        let bound = n_partials.max(2 * MIN_GROUPS * heads_per_block);
        match gpu.scratch("attention", 4 * bound * (layout.head_dim + 2)) {
            Ok(scratch) => Some(scratch),
            Err(error) => return gpu.fault(error.to_string()),
        }
    } else {
        None
    };
    let mut record = gpu.record(data.len());
    let at = record.push_data(&data);
    let params = AttentionParams {
        rows: at + rows_at as u32,
        page_table: at + table_at as u32,
        blocks: at,
        heads_per_block: heads_per_block as u32,
        n_splits: n_splits as u32,
        per_split: pages_per_split as u32,
        ..AttentionParams::new(&args, group)
    };
    let binds = binds(&args, scratch.as_ref().unwrap_or(out));
    let heads = (layout.n_kv_heads * group.div_ceil(heads_per_block)) as u32;
    record.dispatch(&kernel, &params, binds, [blocks.len() as u32, heads, n_splits as u32]);
    if let Some(scratch) = scratch {
        let shape = [rows.len(), n_heads, layout.head_dim, n_splits];
        merge(gpu, out, &scratch, args.sinks, (shape, None));
    }
}

/// Combines the splits of all rows and heads, `shape` = `[T, H, C, splits]`, and writes a q8 copy if there is one.
pub(super) fn merge(
    gpu: &Gpu,
    out: &GpuBuffer,
    scratch: &GpuBuffer,
    sinks: Option<&GpuBuffer>,
    (shape, q8_copy): ([usize; 4], Option<&GpuBuffer>),
) {
    let [n_rows, n_heads, head_dim, n_splits] = shape.map(|n| n as u32);
    let params = MergeParams {
        n_rows,
        n_heads,
        head_dim,
        n_splits,
        has_sinks: u32::from(sinks.is_some()),
        has_q8_copy: u32::from(q8_copy.is_some()),
    };
    let binds = [Bind::Buffer(scratch), sinks.into(), Bind::Buffer(out), q8_copy.into()];
    gpu.record(0).dispatch_linear(&MERGE.kernel(gpu), &params, binds, shape[0] * shape[1]);
}

#[cfg(test)]
mod tests {
    use super::query_blocks;
    use crate::cpu::QueryRow;

    #[test]
    fn blocks_end_where_the_pages_change() {
        let row =
            |first_page, kv_start, kv_len| QueryRow { first_page, n_pages: 3, kv_start, kv_len };
        let rows = [row(0, 0, 64), row(0, 60, 65), row(0, 0, 66), row(3, 130, 140), row(3, 5, 5)];
        let blocks = query_blocks(&rows, 2);
        let shapes: Vec<_> = blocks.iter().map(|b| (b.first_row, b.n_rows, b.pages)).collect();
        assert_eq!(shapes, [(0, 2, (0, 2)), (2, 1, (0, 2)), (3, 2, (2, 3))]);
    }
}
