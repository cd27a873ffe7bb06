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

use super::attention_args::{
    ACCESS, AttentionKernel, AttentionParams, WORKGROUP, binds, blocks, merge, visible, with_params,
};
pub use super::attention_args::{Attention, AttentionGrid, AttentionShape, MAX_HEAD_DIM};
use super::kernel::{ACTIVATIONS, GpuRows, check_len, kernel_source};
use super::kv::{KvWords, dtype_name, elements_per_word, kv_reader};
use super::operand::{GpuOutput, OperandFormat, convert};
use super::{attention_decode, attention_prefill};
use crate::op::{KvDType, KvLayout, PAGE_LEN, QueryRow};
use crate::wgpu::{Gpu, KernelParams, Recorder, Source, Variant};
use crate::{check_at_most, check_eq, check_multiple};

/// Workgroups below which blocks are split along the pages.
const MIN_GROUPS: usize = 256;

impl AttentionGrid {
    /// Kernel and division for `rows`.
    #[must_use]
    pub fn new(gpu: &Gpu, shape: AttentionShape, rows: &[QueryRow]) -> Self {
        if rows.len() <= attention_decode::MAX_ROWS {
            return attention_decode::grid(shape, rows);
        }
        attention_prefill::grid(gpu, shape, rows).unwrap_or_else(|| blocks_grid(shape, rows))
    }
}

/// Shader for `slots` pairs of row and head, with heads of at most `WORKGROUP * words` words.
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
        for head_dim in [64, 256, MAX_HEAD_DIM] {
            let layout = KvLayout { n_kv_heads: 1, head_dim, dtype };
            for slots in [4, max_slots(layout)] {
                all.push(source(dtype, slots as u32, lane_words(layout) as u32, variant));
            }
        }
    }
    all
}

/// Most slots of a workgroup: their queries, weights and sums fit 16 KiB of workgroup memory.
fn max_slots(layout: KvLayout) -> usize {
    match lane_words(layout) * WORKGROUP as usize * elements_per_word(layout.dtype) {
        ..=128 => 16,
        129..=256 => 8,
        _ => 4,
    }
}

/// Checks the shapes.
#[track_caller]
fn check(out: GpuOutput<'_>, args: &Attention<'_>) {
    let (q, layout) = (args.q.checked(), args.kv.layout);
    let width = args.op.n_heads * layout.head_dim;
    let (n_heads, n_kv_heads) = (args.op.n_heads, layout.n_kv_heads);
    check_multiple!(n_heads, n_kv_heads, "attention: heads by KV heads");
    check_eq!((q.rows, q.cols), (args.grid.n_rows, width), "attention: shape of the queries");
    out.check("attention", q.rows, q.cols);
    args.op.slopes.inspect(|slopes| check_len("attention", slopes, n_heads));
    args.op.sinks.inspect(|sinks| check_len("attention", sinks, n_heads));
    check_at_most!(layout.head_dim, MAX_HEAD_DIM, "attention: head_dim");
}

/// Words of a head that an invocation of `attention.wgsl` sums.
fn lane_words(layout: KvLayout) -> usize {
    KvWords::new(layout).row.div_ceil(WORKGROUP as usize)
}

/// Division for `attention.wgsl`.
fn blocks_grid(shape: AttentionShape, rows: &[QueryRow]) -> AttentionGrid {
    let (layout, group) = (shape.layout, shape.group());
    let longest = rows.chunk_by(QueryRow::has_pages_of).map(<[_]>::len).max().unwrap_or(1);
    let slots = (group * longest).next_power_of_two().clamp(4, max_slots(layout));
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
    if n_rows == 0 || args.op.n_heads == 0 {
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
    let bound = (n_rows * args.op.n_heads * n_splits).max(2 * MIN_GROUPS * heads_per_block);
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

#[cfg(test)]
mod tests {
    use super::{AttentionGrid, AttentionKernel};
    use crate::op::QueryRow;

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
