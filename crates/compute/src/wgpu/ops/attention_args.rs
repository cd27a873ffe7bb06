//! Arguments of attention, and the code that its kernels share.

use super::kernel::{ACTIVATIONS, GpuRows, KernelSpec, OperandWriter};
use super::kv::{GpuKvPool, KvWords};
use super::operand::GpuOutput;
use crate::kernel_params;
use crate::op::{AttentionArgs, KvLayout, PAGE_LEN, QueryRow};
use crate::wgpu::{Access, Bind, GpuBuffer, Recorder, Source};

/// Invocations in a workgroup, one per position of a page.
pub(super) const WORKGROUP: u32 = PAGE_LEN as u32;
/// Maximum channels of a head: 4 slots fit the workgroup memory of any adapter.
pub const MAX_HEAD_DIM: usize = 512;

/// Arguments of [`attention`](super::attention::attention).
#[derive(Debug, Clone, Copy)]
pub struct Attention<'a> {
    /// `[T, H*C]`.
    pub q: GpuRows<'a>,
    /// KV cache of the layer.
    pub kv: &'a GpuKvPool,
    /// Heads and scores.
    pub op: AttentionArgs<&'a GpuBuffer>,
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
    /// Blocks of adjacent rows with the same pages; in decode one per row.
    pub(super) n_blocks: usize,
    /// Maximum rows of a block.
    pub(super) block_rows: usize,
    pub(super) n_splits: usize,
    /// Pages (`Blocks`) or positions (`Decode`) of a split.
    pub(super) per_split: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum AttentionKernel {
    Decode,
    /// Number of subgroups in a workgroup.
    Prefill(u32),
    /// Number of slots in a workgroup.
    Blocks(usize),
}

impl AttentionGrid {
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
    /// decode         : first word of the pages, kv_start, kv_len                                 per row
    /// blocks, prefill: first row, rows, first word of the pages, and                             per block
    ///                  end of the pages, first page | kv_start, kv_len of any of the rows
    ///                  kv_start, kv_len                                                          per row
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
pub(super) fn visible(rows: &[QueryRow]) -> (u32, u32) {
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
        /// Sizes of the page layout in words.
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
    /// Parameters of kernels with one query head per workgroup.
    pub(super) fn new(args: &Attention<'_>, operand: bool) -> Self {
        let (layout, words) = (args.kv.layout, KvWords::new(args.kv.layout));
        let AttentionGrid { kernel, n_blocks, n_splits, per_split, .. } = args.grid;
        let n_blocks = if kernel == AttentionKernel::Decode { 0 } else { n_blocks };
        let flag = |set: bool, bit: u32| if set { bit } else { 0 };
        Self {
            n_heads: args.op.n_heads as u32,
            group: args.shape().group() as u32,
            head_dim: layout.head_dim as u32,
            row_words: words.row as u32,
            head_words: words.head as u32,
            page_words: words.page as u32,
            q_offset: args.q.offset as u32,
            q_stride: args.q.stride as u32,
            rows: (args.words + 5 * n_blocks) as u32,
            flags: flag(args.op.soft_cap.is_some(), HAS_SOFT_CAP)
                | flag(args.op.slopes.is_some(), HAS_SLOPES)
                | flag(args.op.sinks.is_some(), HAS_SINKS)
                | flag(operand, HAS_OPERAND),
            scale: args.op.scale,
            soft_cap: args.op.soft_cap.unwrap_or(1.0),
            blocks: args.words as u32,
            heads_per_block: 1,
            n_splits: n_splits as u32,
            per_split: per_split as u32,
        }
    }
}

impl Attention<'_> {
    pub(super) fn shape(&self) -> AttentionShape {
        AttentionShape { n_heads: self.op.n_heads, layout: self.kv.layout }
    }
}

/// Bindings of [`ACCESS`].
pub(super) fn binds<'a>(args: &Attention<'a>, out: Bind<'a>) -> [Bind<'a>; 6] {
    [
        Bind::Step,
        args.q.buffer.into(),
        Bind::Buffer(&args.kv.buffer),
        args.op.slopes.into(),
        args.op.sinks.into(),
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
    workgroup: WORKGROUP,
    operand_writer: OperandWriter::Q8,
    ..KernelSpec::new::<MergeParams>(
        "attention_merge",
        &[Access::Read, Access::Read, Access::Write, Access::Write],
        &[ACTIVATIONS, include_str!("attention_merge.wgsl")],
    )
};

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
        n_heads: args.op.n_heads as u32,
        head_dim: args.kv.layout.head_dim as u32,
        n_splits: n_splits as u32,
        has_sinks: u32::from(args.op.sinks.is_some()),
        has_operand: u32::from(out.operand.is_some()),
    };
    let [values, operand] = out.binds();
    let binds = [Bind::Buffer(partials), args.op.sinks.into(), values, operand];
    list.dispatch_linear(&MERGE.kernel(list.gpu()), &params, binds, n_rows * args.op.n_heads);
}
