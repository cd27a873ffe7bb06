//! Attention of few rows, as when tokens are decoded one by one.
//!
//! A workgroup takes one row and one query head; heads that share keys find them in the cache. Long texts are
//! shared out among workgroups, whose results `attention_merge.wgsl` joins.

use super::attention::{
    self, ACCESS, ACCESS_WITH_TWIN, Attention, HAS_TWIN, PARAMS, Params, merge,
};
use super::kv::{Words, accessor, dtype_name, elements};
use super::{ACTIVATIONS, quantize, start};
use crate::cpu::{KvDType, PAGE_LEN, QueryRow};
use crate::wgpu::{Gpu, GpuBuffer, Source, TwinKind, Variant};

/// Rows up to which this kernel is used.
pub(super) const MAX_ROWS: usize = 8;
const WORKGROUP: u32 = 256;
/// Workgroups up to which positions are shared out.
const ENOUGH_GROUPS: usize = 512;
/// Pages up to which that does not pay: joining takes longer.
const FEW_PAGES: usize = 4;

/// For heads of `words` words.
fn source(dtype: KvDType, words: u32, variant: Variant) -> Source {
    let name = format!("attention_few-{}-{words}-{}", dtype_name(dtype), variant.name());
    // At most as many positions of a page as there are parts.
    let lanes = words.next_power_of_two().clamp(WORKGROUP / PAGE_LEN as u32, WORKGROUP);
    let quarters = if words.is_multiple_of(4) { 4 } else { 1 };
    let batch = (1..=16).rev().find(|n| (words / quarters).is_multiple_of(*n)).unwrap_or(1);
    let source = start(name, ACCESS_WITH_TWIN, variant, WORKGROUP)
        .constant("W", words)
        .constant("LANES", lanes)
        .constant("WORDS", words.div_ceil(lanes))
        .constant("QUARTERS", quarters)
        .constant("B", batch)
        .constant("HAS_SCALES", u32::from(dtype == KvDType::Q8_0))
        .file(ACTIVATIONS)
        .file(include_str!("half.wgsl"))
        .file(accessor(dtype));
    quantize::writer(source, variant).file(PARAMS).file(include_str!("attention_few.wgsl"))
}

pub(super) fn sources(variant: Variant) -> Vec<Source> {
    let mut all = Vec::new();
    for dtype in [KvDType::F32, KvDType::F16, KvDType::Q8_0] {
        all.extend([5, 64, 512].map(|words| source(dtype, words, variant)));
    }
    all
}

/// Positions of a split, and how many splits there are.
fn split(rows: &[QueryRow], n_heads: usize) -> (usize, usize) {
    let page = |position: u32| position as usize / PAGE_LEN;
    let seen = |row: &QueryRow| page(row.kv_len + PAGE_LEN as u32 - 1) - page(row.kv_start);
    let most = rows.iter().map(seen).max().unwrap_or(0);
    let n_pages = page(rows.iter().map(|row| row.kv_len).max().unwrap_or(0)) + 1;
    if most <= FEW_PAGES {
        return (n_pages * PAGE_LEN, 1);
    }
    let pages = (most * rows.len() * n_heads).div_ceil(ENOUGH_GROUPS).max(FEW_PAGES / 2);
    // Splits before a window find nothing to do.
    (pages * PAGE_LEN, n_pages.div_ceil(pages))
}

/// [`attention`](super::attention::attention) with checked arguments; `group` query heads share a KV head.
pub(super) fn attention(gpu: &Gpu, out: &GpuBuffer, args: &Attention<'_>, group: usize) {
    let Attention { q, kv, n_heads, rows, page_table, .. } = *args;
    let (layout, words) = (kv.layout, Words::new(kv.layout));
    let (positions_per_split, n_splits) = split(rows, n_heads);
    let mut data = Vec::with_capacity(3 * rows.len() + page_table.len());
    data.extend(rows.iter().flat_map(|row| [row.first_page, row.kv_start, row.kv_len]));
    data.extend_from_slice(page_table);
    let scratch = if n_splits > 1 {
        // As much as any number of positions can need up to some length, so that few texts need more.
        let most = rows.len() * n_heads * n_splits;
        let bound = most.max(2 * (ENOUGH_GROUPS + MAX_ROWS * n_heads));
        match gpu.scratch("attention", 4 * bound * (layout.head_dim + 2)) {
            Ok(scratch) => Some(scratch),
            Err(error) => return gpu.fault(error.to_string()),
        }
    } else {
        None
    };
    // Groups of 32 channels must not reach over heads.
    let is_whole = layout.head_dim.is_multiple_of(quantize::GROUP_LEN);
    let codes = quantize::wanted(out, rows.len(), q.cols).filter(|_| is_whole);
    let own_codes = codes.as_ref().filter(|_| n_splits == 1);
    let kernel = {
        let key = [words.row as u32, elements(layout.dtype) as u32, 0, 0];
        let source = || source(layout.dtype, words.row as u32, gpu.variant());
        gpu.kernel(("attention_few", key), source)
    };
    let mut record = gpu.record(data.len());
    let at = record.words(&data);
    let params = Params::new(args, group);
    let params = Params {
        rows: at,
        page_table: at + 3 * rows.len() as u32,
        flags: params.flags | if own_codes.is_some() { HAS_TWIN } else { 0 },
        n_splits: n_splits as u32,
        per_split: positions_per_split as u32,
        ..params
    };
    let mut binds = [own_codes.into(); ACCESS_WITH_TWIN.len()];
    binds[..ACCESS.len()].copy_from_slice(&attention::binds(args, scratch.as_ref().unwrap_or(out)));
    record.dispatch(&kernel, &params, binds, [rows.len() as u32, n_heads as u32, n_splits as u32]);
    if let Some(scratch) = &scratch {
        let shape = [rows.len(), n_heads, layout.head_dim, n_splits];
        merge(gpu, out, scratch, args.sinks, (shape, codes.as_ref()));
    }
    if codes.is_some() {
        out.set_twin(TwinKind::Codes, [rows.len(), q.cols]);
    }
}

#[cfg(test)]
mod tests {
    use super::{QueryRow, split};

    #[test]
    fn long_texts_are_shared_out_and_every_position_is_seen() {
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
