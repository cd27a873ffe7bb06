//! Decode attention (up to 8 rows) with split-K.
//!
//! A workgroup takes one query row, one query head and one split of the positions; query heads of the same KV head share
//! its keys and values through the cache. `attention_merge.wgsl` combines the splits.

use super::attention_args::{
    self, ACCESS_WITH_OPERAND, Attention, AttentionGrid, AttentionKernel, AttentionParams,
    AttentionShape, MAX_HEAD_DIM, merge, with_params,
};
use super::kernel::{ACTIVATIONS, kernel_source};
use super::kv::{KvWords, dtype_name, elements_per_word, kv_reader};
use super::operand::GpuOutput;
use super::q8;
use crate::op::{KvDType, PAGE_LEN, QueryRow};
use crate::wgpu::{Bind, KernelParams, Recorder, Source, Variant};

/// Maximum query rows.
pub(super) const MAX_ROWS: usize = 8;
const WORKGROUP: u32 = 256;
/// Workgroups that fill a large device: the target of the number of splits.
const MIN_GROUPS: usize = 512;
/// Maximum pages without splits: merging splits of fewer pages costs more than it gains.
const MAX_UNSPLIT_PAGES: usize = 4;

/// Shader for heads of `words` words.
fn source(dtype: KvDType, words: u32, variant: Variant) -> Source {
    let name = format!("attention_decode-{}-{words}-{}", dtype_name(dtype), variant.name());
    // Enough lanes that there are at most PAGE_LEN position slices.
    let lanes = words.next_power_of_two().clamp(WORKGROUP / PAGE_LEN as u32, WORKGROUP);
    let key_slices = if words.is_multiple_of(4) { 4 } else { 1 };
    let batch = (1..=16).rev().find(|n| (words / key_slices).is_multiple_of(*n)).unwrap_or(1);
    let params = AttentionParams::LAYOUT;
    let source = kernel_source(name, params, ACCESS_WITH_OPERAND, variant, WORKGROUP)
        .constant("ROW_WORDS", words)
        .constant("LANES", lanes)
        .constant("LANE_WORDS", words.div_ceil(lanes))
        .constant("KEY_SLICES", key_slices)
        .constant("BATCH", batch)
        .constant("HAS_SCALES", u32::from(dtype == KvDType::Q8_0))
        .file(ACTIVATIONS)
        .file(include_str!("f16_bits.wgsl"))
        .file(kv_reader(dtype));
    with_params(q8::with_quantize4(source, variant)).file(include_str!("attention_decode.wgsl"))
}

pub(super) fn sources(variant: Variant) -> Vec<Source> {
    let mut all = Vec::new();
    for dtype in [KvDType::F32, KvDType::F16, KvDType::Q8_0] {
        let largest = (MAX_HEAD_DIM / elements_per_word(dtype)) as u32;
        all.extend([5, 64, largest].map(|words| source(dtype, words, variant)));
    }
    all
}

/// Positions in a split, and the number of splits.
fn split(rows: &[QueryRow], n_heads: usize) -> (usize, usize) {
    let page = |position: u32| position as usize / PAGE_LEN;
    let visible = |row: &QueryRow| page(row.kv_len + PAGE_LEN as u32 - 1) - page(row.kv_start);
    let max_visible = rows.iter().map(visible).max().unwrap_or(0);
    let n_pages = page(rows.iter().map(|row| row.kv_len).max().unwrap_or(0)) + 1;
    if max_visible <= MAX_UNSPLIT_PAGES {
        return (n_pages * PAGE_LEN, 1);
    }
    let pages = (max_visible * rows.len() * n_heads).div_ceil(MIN_GROUPS);
    let pages = pages.max(MAX_UNSPLIT_PAGES / 2);
    // Splits start at position 0: those before a sliding window are empty.
    (pages * PAGE_LEN, n_pages.div_ceil(pages))
}

/// Division of up to [`MAX_ROWS`] rows.
pub(super) fn grid(shape: AttentionShape, rows: &[QueryRow]) -> AttentionGrid {
    let (n_rows, kernel) = (rows.len(), AttentionKernel::Decode);
    let (per_split, n_splits) = split(rows, shape.n_heads);
    AttentionGrid { kernel, n_rows, n_blocks: n_rows, block_rows: 1, n_splits, per_split }
}

/// [`attention`](super::attention::attention) with checked arguments.
pub(super) fn attention(list: &mut Recorder, out: GpuOutput<'_>, args: &Attention<'_>) {
    let (layout, words) = (args.kv.layout, KvWords::new(args.kv.layout));
    let AttentionGrid { n_rows, n_splits, .. } = args.grid;
    let n_heads = args.op.n_heads;
    // Bound for contexts up to some length, so that the scratch buffer seldom grows.
    let bound = (n_rows * n_heads * n_splits).max(2 * (MIN_GROUPS + MAX_ROWS * n_heads));
    let partials =
        (n_splits > 1).then(|| list.scratch("attention", 4 * bound * (layout.head_dim + 2)));
    let key = [words.row as u32, elements_per_word(layout.dtype) as u32, 0, 0];
    let variant = list.gpu().variant();
    let kernel = list
        .gpu()
        .kernel(("attention_decode", key), || source(layout.dtype, words.row as u32, variant));
    let [values, operand] = out.binds();
    let (values, operand) = match &partials {
        Some(partials) => (Bind::Buffer(partials), Bind::Unused),
        None => (values, operand),
    };
    let params = AttentionParams::new(args, partials.is_none() && out.operand.is_some());
    let binds = [&attention_args::binds(args, values)[..], &[operand]].concat();
    list.dispatch(&kernel, &params, binds, [n_rows as u32, n_heads as u32, n_splits as u32]);
    if let Some(partials) = &partials {
        merge(list, out, partials, args);
    }
}

#[cfg(test)]
mod tests {
    use super::{QueryRow, split};

    #[test]
    fn long_contexts_are_split_and_every_position_is_seen() {
        for (kv_start, kv_len, n_heads) in
            [(0, 1, 8), (0, 256, 8), (0, 257, 8), (0, 5000, 32), (900, 5000, 32), (63, 320, 1)]
        {
            let row = QueryRow { first_page: 0, n_pages: 80, kv_start, kv_len };
            let (positions, n) = split(&[row], n_heads);
            assert!(positions * n >= kv_len as usize, "{positions} x {n} of {kv_len}");
            assert!(positions % 64 == 0 && (n == 1) == (kv_len <= 256), "{positions} x {n}");
        }
        let row = QueryRow { first_page: 0, n_pages: 80, kv_start: 0, kv_len: 2047 };
        assert_eq!(split(&[row], 32), (128, 16));
    }
}
