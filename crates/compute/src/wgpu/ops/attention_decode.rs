//! Decode attention (up to 8 rows) with split-K.
//!
//! A workgroup takes one query row, one query head and one split of the positions; query heads of the same KV head share
//! its keys and values through the cache. `attention_merge.wgsl` combines the splits.

use super::attention::{
    self, ACCESS, ACCESS_WITH_COPY, Attention, AttentionParams, HAS_COPY, merge, with_params,
};
use super::kv::{KvWords, dtype_name, elements_per_word, kv_reader};
use super::{ACTIVATIONS, kernel_source, q8_copy};
use crate::cpu::{KvDType, PAGE_LEN, QueryRow};
use crate::wgpu::{CopyFormat, Gpu, GpuBuffer, KernelParams, Source, Variant};

/// Most rows.
pub(super) const MAX_ROWS: usize = 8;
const WORKGROUP: u32 = 256;
/// Workgroups that fill a large device: the target of the number of splits.
const MIN_GROUPS: usize = 512;
/// Most pages without splits: below, merging costs more than it gains.
const MAX_UNSPLIT_PAGES: usize = 4;

/// For heads of `words` words.
fn source(dtype: KvDType, words: u32, variant: Variant) -> Source {
    let name = format!("attention_decode-{}-{words}-{}", dtype_name(dtype), variant.name());
    // At most PAGE_LEN position slices.
    let lanes = words.next_power_of_two().clamp(WORKGROUP / PAGE_LEN as u32, WORKGROUP);
    let key_slices = if words.is_multiple_of(4) { 4 } else { 1 };
    let batch = (1..=16).rev().find(|n| (words / key_slices).is_multiple_of(*n)).unwrap_or(1);
    let params = AttentionParams::LAYOUT;
    let source = kernel_source(name, params, ACCESS_WITH_COPY, variant, WORKGROUP)
        .constant("ROW_WORDS", words)
        .constant("LANES", lanes)
        .constant("LANE_WORDS", words.div_ceil(lanes))
        .constant("KEY_SLICES", key_slices)
        .constant("BATCH", batch)
        .constant("HAS_SCALES", u32::from(dtype == KvDType::Q8_0))
        .file(ACTIVATIONS)
        .file(include_str!("f16_bits.wgsl"))
        .file(kv_reader(dtype));
    with_params(q8_copy::with_quantize4(source, variant))
        .file(include_str!("attention_decode.wgsl"))
}

pub(super) fn sources(variant: Variant) -> Vec<Source> {
    let mut all = Vec::new();
    for dtype in [KvDType::F32, KvDType::F16, KvDType::Q8_0] {
        all.extend([5, 64, 512].map(|words| source(dtype, words, variant)));
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

/// [`attention`](super::attention::attention) with checked arguments; `group` query heads per KV head.
pub(super) fn attention(gpu: &Gpu, out: &GpuBuffer, args: &Attention<'_>, group: usize) {
    let Attention { q, kv, n_heads, rows, page_table, .. } = *args;
    let (layout, words) = (kv.layout, KvWords::new(kv.layout));
    let (positions_per_split, n_splits) = split(rows, n_heads);
    let mut data = Vec::with_capacity(3 * rows.len() + page_table.len());
    data.extend(rows.iter().flat_map(|row| [row.first_page, row.kv_start, row.kv_len]));
    data.extend_from_slice(page_table);
    let scratch = if n_splits > 1 {
        // Bound for contexts up to some length, so that the scratch buffer seldom grows.
        let n_partials = rows.len() * n_heads * n_splits;
        let bound = n_partials.max(2 * (MIN_GROUPS + MAX_ROWS * n_heads));
        match gpu.scratch("attention", 4 * bound * (layout.head_dim + 2)) {
            Ok(scratch) => Some(scratch),
            Err(error) => return gpu.fault(error.to_string()),
        }
    } else {
        None
    };
    // A q8 group must not span two heads.
    let is_whole = layout.head_dim.is_multiple_of(q8_copy::GROUP_LEN);
    let copy = q8_copy::requested(out, rows.len(), q.cols).filter(|_| is_whole);
    let unsplit_copy = copy.as_ref().filter(|_| n_splits == 1);
    let kernel = {
        let key = [words.row as u32, elements_per_word(layout.dtype) as u32, 0, 0];
        let source = || source(layout.dtype, words.row as u32, gpu.variant());
        gpu.kernel(("attention_decode", key), source)
    };
    let mut record = gpu.record(data.len());
    let at = record.push_data(&data);
    let params = AttentionParams::new(args, group);
    let params = AttentionParams {
        rows: at,
        page_table: at + 3 * rows.len() as u32,
        flags: params.flags | if unsplit_copy.is_some() { HAS_COPY } else { 0 },
        n_splits: n_splits as u32,
        per_split: positions_per_split as u32,
        ..params
    };
    let mut binds = [unsplit_copy.into(); ACCESS_WITH_COPY.len()];
    binds[..ACCESS.len()].copy_from_slice(&attention::binds(args, scratch.as_ref().unwrap_or(out)));
    record.dispatch(&kernel, &params, binds, [rows.len() as u32, n_heads as u32, n_splits as u32]);
    if let Some(scratch) = &scratch {
        let shape = [rows.len(), n_heads, layout.head_dim, n_splits];
        merge(gpu, out, scratch, args.sinks, (shape, copy.as_ref()));
    }
    if copy.is_some() {
        out.mark_copy(CopyFormat::Q8, [rows.len(), q.cols]);
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
