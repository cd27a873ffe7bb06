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
use super::operand::{GpuOutput, OperandFormat, convert};
use super::{
    ACTIVATIONS, GpuRows, KernelSpec, OperandWriter, attention_decode, attention_prefill,
    check_len, kernel_source,
};
use crate::cpu::{KvDType, KvLayout, PAGE_LEN, QueryRow};
use crate::kernel_params;
use crate::wgpu::{Access, Bind, Gpu, GpuBuffer, KernelParams, Recorder, Source, Variant};

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
    /// Division of the rows.
    pub grid: AttentionGrid,
    /// First word of [`AttentionGrid::push_words`], inputs of the step.
    pub words: usize,
}

/// Heads of an attention op.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionShape {
    /// Query heads `H`, a multiple of the KV heads.
    pub n_heads: usize,
    /// Layout of the pages.
    pub layout: KvLayout,
}

impl AttentionShape {
    /// Query heads per KV head.
    pub(super) fn group(self) -> usize {
        self.n_heads / self.layout.n_kv_heads
    }
}

/// Kernel and division of the query rows of a step among workgroups. Steps with equal ones have equal dispatches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttentionGrid {
    pub(super) kernel: AttentionKernel,
    pub(super) n_rows: usize,
    /// Blocks of adjacent rows with the same pages; one a row in decode.
    pub(super) n_blocks: usize,
    /// Most rows of a block.
    pub(super) block_rows: usize,
    pub(super) n_splits: usize,
    /// Pages (`Blocks`) or positions (`Decode`) of a split.
    pub(super) per_split: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum AttentionKernel {
    Decode,
    /// With so many subgroups.
    Prefill(u32),
    /// With so many slots.
    Blocks(usize),
}

impl AttentionGrid {
    /// Kernel and division for `rows`.
    #[must_use]
    pub fn new(gpu: &Gpu, shape: AttentionShape, rows: &[QueryRow]) -> Self {
        if rows.len() <= attention_decode::MAX_ROWS {
            return attention_decode::grid(shape, rows);
        }
        attention_prefill::grid(gpu, shape, rows).unwrap_or_else(|| blocks_grid(shape, rows))
    }

    /// Number of words that [`push_words`](Self::push_words) appends.
    #[must_use]
    pub fn n_words(&self) -> usize {
        match self.kernel {
            AttentionKernel::Decode => 3 * self.n_rows,
            _ => 5 * self.n_blocks + 2 * self.n_rows,
        }
    }

    /// Appends the inputs of the kernel. The page table of the rows starts at word `page_table`.
    ///
    /// ```text
    /// decode         : first word of the pages, kv_start, kv_len                                 a row
    /// blocks, prefill: first row, rows, first word of the pages, and                             a block
    ///                  end of the pages, first page | kv_start, kv_len of any of the rows
    ///                  kv_start, kv_len                                                          a row
    /// ```
    pub fn push_words(&self, rows: &[QueryRow], page_table: usize, words: &mut Vec<u32>) {
        let page_table = page_table as u32;
        let range = |row: &QueryRow| [row.kv_start, row.kv_len];
        if self.kernel == AttentionKernel::Decode {
            for row in rows {
                words.push(page_table + row.first_page);
                words.extend(range(row));
            }
            return;
        }
        for (first_row, block) in blocks(rows, self.block_rows) {
            let table = page_table + block[0].first_page;
            words.extend([first_row as u32, block.len() as u32]);
            let (start, end) = visible(block);
            match self.kernel {
                AttentionKernel::Prefill(_) => words.extend([table, start, end]),
                _ => {
                    let (from, to) = (start / PAGE_LEN as u32, end.div_ceil(PAGE_LEN as u32));
                    words.extend([table + from, table + to.max(from), from]);
                }
            }
        }
        words.extend(rows.iter().flat_map(range));
    }
}

/// Blocks of at most `max_rows` adjacent rows with the same pages, with the index of their first row.
pub(super) fn blocks(
    rows: &[QueryRow],
    max_rows: usize,
) -> impl Iterator<Item = (usize, &[QueryRow])> {
    let sequences = rows.chunk_by(QueryRow::has_pages_of);
    let all = sequences.flat_map(move |sequence| sequence.chunks(max_rows));
    all.scan(0, |next, block| {
        let first = *next;
        *next += block.len();
        Some((first, block))
    })
}

/// Range of positions visible to any of the rows; empty at 0 if there is none.
fn visible(rows: &[QueryRow]) -> (u32, u32) {
    let visible = || rows.iter().filter(|row| row.kv_len > row.kv_start);
    let start = visible().map(|row| row.kv_start).min().unwrap_or(0);
    (start, visible().map(|row| row.kv_len).max().unwrap_or(0))
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
    /// Parameters of one query head a workgroup.
    pub(super) fn new(args: &Attention<'_>, operand: bool) -> Self {
        let (layout, words) = (args.kv.layout, KvWords::new(args.kv.layout));
        let AttentionGrid { kernel, n_blocks, n_splits, per_split, .. } = args.grid;
        let n_blocks = if kernel == AttentionKernel::Decode { 0 } else { n_blocks };
        let flag = |set: bool, bit: u32| if set { bit } else { 0 };
        Self {
            n_heads: args.n_heads as u32,
            group: args.shape().group() as u32,
            head_dim: layout.head_dim as u32,
            row_words: words.row as u32,
            head_words: words.head as u32,
            page_words: words.page as u32,
            q_offset: args.q.offset as u32,
            q_stride: args.q.stride as u32,
            rows: (args.words + 5 * n_blocks) as u32,
            flags: flag(args.soft_cap.is_some(), HAS_SOFT_CAP)
                | flag(args.slopes.is_some(), HAS_SLOPES)
                | flag(args.sinks.is_some(), HAS_SINKS)
                | flag(operand, HAS_OPERAND),
            scale: args.scale,
            soft_cap: args.soft_cap.unwrap_or(1.0),
            blocks: args.words as u32,
            heads_per_block: 1,
            n_splits: n_splits as u32,
            per_split: per_split as u32,
        }
    }
}

impl Attention<'_> {
    pub(super) fn shape(&self) -> AttentionShape {
        AttentionShape { n_heads: self.n_heads, layout: self.kv.layout }
    }
}

/// Bindings of [`ACCESS`].
pub(super) fn binds<'a>(args: &Attention<'a>, out: Bind<'a>) -> [Bind<'a>; 6] {
    [
        Bind::Step,
        args.q.buffer.into(),
        Bind::Buffer(&args.kv.buffer),
        args.slopes.into(),
        args.sinks.into(),
        out,
    ]
}

/// Bits of `flags`.
const HAS_SOFT_CAP: u32 = 1;
const HAS_SLOPES: u32 = 2;
const HAS_SINKS: u32 = 4;
/// Write the result as an operand: q8 in decode, f16 in prefill.
const HAS_OPERAND: u32 = 8;

/// Appends `Params`, the bits of `flags` and the bindings of [`ACCESS`].
pub(super) fn with_params(source: Source) -> Source {
    source
        .constant("HAS_SOFT_CAP", HAS_SOFT_CAP)
        .constant("HAS_SLOPES", HAS_SLOPES)
        .constant("HAS_SINKS", HAS_SINKS)
        .constant("HAS_OPERAND", HAS_OPERAND)
        .file(include_str!("attention_params.wgsl"))
}

kernel_params! {
    struct MergeParams {
        n_rows: u32,
        n_heads: u32,
        head_dim: u32,
        n_splits: u32,
        has_sinks: u32,
        has_operand: u32,
    }
}

/// Data, queries, pages, slopes, sinks, output.
pub(super) const ACCESS: &[Access] =
    &[Access::Read, Access::Read, Access::Read, Access::Read, Access::Read, Access::Write];
/// [`ACCESS`] and the output as an operand.
pub(super) const ACCESS_WITH_OPERAND: &[Access] =
    &Access::concat::<{ ACCESS.len() + 1 }>(ACCESS, &[Access::Write]);
pub(super) const MERGE: KernelSpec = KernelSpec {
    name: "attention_merge",
    params: MergeParams::LAYOUT,
    access: &[Access::Read, Access::Read, Access::Write, Access::Write],
    workgroup: WORKGROUP,
    files: &[ACTIVATIONS, include_str!("attention_merge.wgsl")],
    operand_writer: OperandWriter::Q8,
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

/// Checks the shapes.
#[track_caller]
fn check(out: GpuOutput<'_>, args: &Attention<'_>) {
    let (q, layout) = (args.q.checked(), args.kv.layout);
    let width = args.n_heads * layout.head_dim;
    let (n_heads, n_kv_heads) = (args.n_heads, layout.n_kv_heads);
    assert!(
        n_kv_heads > 0 && n_heads.is_multiple_of(n_kv_heads),
        "attention: {n_heads} heads are no multiple of {n_kv_heads} kv heads"
    );
    assert_eq!((q.rows, q.cols), (args.grid.n_rows, width), "attention: shape of the queries");
    out.check("attention", q.rows, q.cols);
    args.slopes.inspect(|slopes| check_len("attention", slopes, n_heads));
    args.sinks.inspect(|sinks| check_len("attention", sinks, n_heads));
    let head_dim = layout.head_dim;
    assert!(head_dim <= MAX_HEAD_DIM, "attention: heads of {head_dim} channels");
}

/// Words of a head that an invocation of `attention.wgsl` sums.
fn lane_words(layout: KvLayout) -> usize {
    KvWords::new(layout).row.div_ceil(WORKGROUP as usize)
}

/// Division for `attention.wgsl`.
fn blocks_grid(shape: AttentionShape, rows: &[QueryRow]) -> AttentionGrid {
    let (layout, group) = (shape.layout, shape.group());
    let longest = rows.chunk_by(QueryRow::has_pages_of).map(<[_]>::len).max().unwrap_or(1);
    // Queries, weights and sums of the slots fit 16 KiB of workgroup memory.
    let channels = lane_words(layout) * WORKGROUP as usize * elements_per_word(layout.dtype);
    let max_slots = match channels {
        ..=128 => 16,
        129..=256 => 8,
        _ => 4,
    };
    let slots = (group * longest).next_power_of_two().clamp(4, max_slots);
    let heads_per_block = group.min(slots);
    let block_rows = slots / heads_per_block;
    let n_blocks = blocks(rows, block_rows).count();
    let n_groups = n_blocks * layout.n_kv_heads * group.div_ceil(heads_per_block);
    let n_pages = |(_, block): (usize, &[QueryRow])| {
        let (start, end) = visible(block);
        (end as usize).div_ceil(PAGE_LEN).saturating_sub(start as usize / PAGE_LEN)
    };
    let max_pages = blocks(rows, block_rows).map(n_pages).max().unwrap_or(0).max(1);
    let min_splits = MIN_GROUPS.div_ceil(n_groups).clamp(1, max_pages);
    let per_split = max_pages.div_ceil(min_splits);
    let n_splits = max_pages.div_ceil(per_split);
    let kernel = AttentionKernel::Blocks(slots);
    AttentionGrid { kernel, n_rows: rows.len(), n_blocks, block_rows, n_splits, per_split }
}

/// Softmax attention of every query row over the positions `kv_start .. kv_len` of its pages. Shapes: `q`, `out` =
/// `[T, H*C]`. A row without visible positions gives zeros.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn attention(list: &mut Recorder, out: GpuOutput<'_>, args: Attention<'_>) {
    check(out, &args);
    let AttentionGrid { kernel, n_rows, .. } = args.grid;
    if n_rows == 0 || args.n_heads == 0 {
        return;
    }
    let writes_operand = match kernel {
        AttentionKernel::Decode => Some(OperandFormat::Q8),
        AttentionKernel::Prefill(_) => Some(OperandFormat::F16),
        AttentionKernel::Blocks(_) => None,
    };
    // Other operands are converted from f32.
    let converted = out.operand.filter(|(format, _)| Some(*format) != writes_operand);
    let q = args.q;
    let values = converted.map(|_| list.scratch("attention result", 4 * n_rows * q.cols));
    let out = match &values {
        Some(values) => GpuOutput::from(values),
        None => out,
    };
    match kernel {
        AttentionKernel::Decode => attention_decode::attention(list, out, &args),
        AttentionKernel::Prefill(subgroups) => {
            attention_prefill::attention(list, out, &args, subgroups);
        }
        AttentionKernel::Blocks(slots) => blocks_attention(list, out, &args, slots),
    }
    if let (Some((format, operand)), Some(values)) = (converted, &values) {
        convert(list, operand, format, GpuRows::packed(values, n_rows, q.cols));
    }
}

fn blocks_attention(list: &mut Recorder, out: GpuOutput<'_>, args: &Attention<'_>, slots: usize) {
    let (layout, group) = (args.kv.layout, args.shape().group());
    let AttentionGrid { n_rows, n_blocks, n_splits, .. } = args.grid;
    let (words, heads_per_block) = (lane_words(layout), group.min(slots));
    let key = [slots as u32, words as u32, elements_per_word(layout.dtype) as u32, 0];
    let variant = list.gpu().variant();
    let kernel = list
        .gpu()
        .kernel(("attention", key), || source(layout.dtype, slots as u32, words as u32, variant));
    // Bound for any number of pages, so that the scratch buffer does not grow with the context.
    let bound = (n_rows * args.n_heads * n_splits).max(2 * MIN_GROUPS * heads_per_block);
    let partials =
        (n_splits > 1).then(|| list.scratch("attention", 4 * bound * (layout.head_dim + 2)));
    let params = AttentionParams {
        heads_per_block: heads_per_block as u32,
        ..AttentionParams::new(args, false)
    };
    let binds = binds(args, partials.as_ref().or(out.values).into());
    let heads = (layout.n_kv_heads * group.div_ceil(heads_per_block)) as u32;
    list.dispatch(&kernel, &params, binds, [n_blocks as u32, heads, n_splits as u32]);
    if let Some(partials) = partials {
        merge(list, out, &partials, args);
    }
}

/// Combines the splits of all rows and heads.
pub(super) fn merge(
    list: &mut Recorder,
    out: GpuOutput<'_>,
    partials: &GpuBuffer,
    args: &Attention<'_>,
) {
    let AttentionGrid { n_rows, n_splits, .. } = args.grid;
    let params = MergeParams {
        n_rows: n_rows as u32,
        n_heads: args.n_heads as u32,
        head_dim: args.kv.layout.head_dim as u32,
        n_splits: n_splits as u32,
        has_sinks: u32::from(args.sinks.is_some()),
        has_operand: u32::from(out.operand.is_some()),
    };
    let [values, operand] = out.binds();
    let binds = [Bind::Buffer(partials), args.sinks.into(), values, operand];
    list.dispatch_linear(&MERGE.kernel(list.gpu()), &params, binds, n_rows * args.n_heads);
}

#[cfg(test)]
mod tests {
    use super::{AttentionGrid, AttentionKernel};
    use crate::cpu::QueryRow;

    const fn row(first_page: u32, kv_start: u32, kv_len: u32) -> QueryRow {
        QueryRow { first_page, n_pages: 3, kv_start, kv_len }
    }

    const ROWS: [QueryRow; 5] =
        [row(0, 3, 64), row(0, 60, 65), row(0, 0, 66), row(3, 130, 140), row(3, 5, 5)];

    fn words(kernel: AttentionKernel) -> Vec<u32> {
        let (n_rows, n_blocks, block_rows) = (5, 3, 2);
        let grid =
            AttentionGrid { kernel, n_rows, n_blocks, block_rows, n_splits: 1, per_split: 0 };
        let mut words = Vec::new();
        grid.push_words(&ROWS, 100, &mut words);
        assert_eq!(words.len(), grid.n_words());
        words
    }

    #[test]
    fn blocks_end_where_the_pages_change() {
        let blocks = [0, 2, 100, 102, 0, 2, 1, 100, 102, 0, 3, 2, 105, 106, 2];
        assert_eq!(words(AttentionKernel::Blocks(4))[..15], blocks);
    }

    #[test]
    fn blocks_of_a_prompt_have_the_visible_range_of_their_rows() {
        let words = words(AttentionKernel::Prefill(4));
        assert_eq!(words[..15], [0, 2, 100, 3, 65, 2, 1, 100, 0, 66, 3, 2, 103, 130, 140]);
        assert_eq!(words[15..], [3, 64, 60, 65, 0, 66, 130, 140, 5, 5]);
    }

    #[test]
    fn a_row_of_decode_has_its_own_pages() {
        assert_eq!(words(AttentionKernel::Decode)[9..12], [103, 130, 140]);
    }
}
