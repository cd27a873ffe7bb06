//! Prefill attention (16 rows or more a sequence) by cooperative matrices, over f16 pages.
//!
//! A workgroup takes a block of query rows with the same pages, and one query head. It walks the positions visible to
//! any of the rows once, see the pseudo-code in `attention_prefill.wgsl`. Queries and softmax weights are rounded to
//! f16; sums are f32.

use super::attention::{
    ACCESS, ACCESS_WITH_COPY, Attention, AttentionParams, HAS_COPY, binds, with_params,
};
use super::{ACTIVATIONS, f16_copy, kernel_source};
use crate::cpu::{KvDType, PAGE_LEN, QueryRow};
use crate::wgpu::{Bind, CoopMatrices, CopyFormat, Gpu, GpuBuffer, KernelParams, Source, Variant};

/// Subgroups in a workgroup, each with the query rows of one matrix. 8 share keys and values among more rows; 4 where
/// 8 would give too few workgroups.
const SUBGROUPS: [u32; 2] = [8, 4];
/// Workgroups that fill a large device.
const MIN_GROUPS: usize = 160;
/// Positions in a step.
const POSITIONS: u32 = 16;
/// Widest head whose sums fit the registers.
const MAX_HEAD_DIM: usize = 256;
/// Fewest rows a sequence, on average: a block with fewer has too many empty rows.
const MIN_ROWS: usize = 16;

/// For heads of `channels`, a multiple of 16.
fn source(matrices: CoopMatrices, channels: u32, subgroups: u32) -> Source {
    let name = format!("attention_prefill-f16-{channels}x{subgroups}");
    let (access, workgroup) = (ACCESS_WITH_COPY, subgroups * matrices.subgroup);
    let source =
        kernel_source(name, AttentionParams::LAYOUT, access, Variant::Subgroups, workgroup)
            .with_matrices(matrices)
            .constant("STEP", POSITIONS)
            .constant("CHANNELS", channels)
            .constant("PAGE", PAGE_LEN as u32)
            .file(ACTIVATIONS)
            .file(f16_copy::PACK);
    with_params(source)
        .unrolled(include_str!("attention_prefill.wgsl"), &[("CHANNELS", channels / matrices.side)])
}

pub(super) fn sources(matrices: CoopMatrices) -> Vec<Source> {
    let of = |channels| SUBGROUPS.map(|subgroups| source(matrices, channels, subgroups));
    [16, 64, 80, 128, 256].map(of).concat()
}

/// Whether [`attention`] supports the device, the layout and the rows.
pub(super) fn supports(gpu: &Gpu, args: &Attention<'_>) -> bool {
    let layout = args.kv.layout;
    let n_sequences = args.rows.chunk_by(QueryRow::has_pages_of).count();
    gpu.matrices().is_some()
        && layout.dtype == KvDType::F16
        && layout.head_dim.is_multiple_of(8)
        && layout.head_dim <= MAX_HEAD_DIM
        && args.rows.len() >= MIN_ROWS * n_sequences
}

/// Number of subgroups in a workgroup for `rows`.
fn subgroups(rows: &[QueryRow], n_heads: usize, matrices: CoopMatrices) -> u32 {
    let [large, small] = SUBGROUPS;
    let max_rows = (large * matrices.side) as usize;
    let sequences = rows.chunk_by(QueryRow::has_pages_of);
    let n_blocks: usize = sequences.map(|rows| rows.len().div_ceil(max_rows)).sum();
    if n_blocks * n_heads >= MIN_GROUPS { large } else { small }
}

/// Data of the kernel: blocks of at most `max_rows` rows (first row, rows, first entry of the page table, visible range
/// of positions), rows (`kv_start`, `kv_len`), page table. Returns it with the first words of rows and page table, and
/// the number of blocks.
fn data(rows: &[QueryRow], page_table: &[u32], max_rows: usize) -> (Vec<u32>, [u32; 2], u32) {
    let mut data = Vec::new();
    let mut first_row = 0;
    for sequence in rows.chunk_by(QueryRow::has_pages_of) {
        for block in sequence.chunks(max_rows) {
            let visible = block.iter().filter(|row| row.kv_len > row.kv_start);
            let low = visible.clone().map(|row| row.kv_start).min().unwrap_or(0);
            let high = visible.map(|row| row.kv_len).max().unwrap_or(0);
            data.extend([first_row, block.len() as u32, block[0].first_page, low, high]);
            first_row += block.len() as u32;
        }
    }
    let rows_at = data.len();
    data.extend(rows.iter().flat_map(|row| [row.kv_start, row.kv_len]));
    let table_at = data.len();
    data.extend_from_slice(page_table);
    (data, [rows_at as u32, table_at as u32], (rows_at / 5) as u32)
}

/// [`attention`](super::attention::attention) with checked arguments; `group` query heads per KV head.
pub(super) fn attention(gpu: &Gpu, out: &GpuBuffer, args: &Attention<'_>, group: usize) {
    let Attention { kv, n_heads, rows, page_table, .. } = *args;
    let Some(matrices) = gpu.matrices() else { return };
    let channels = kv.layout.head_dim.next_multiple_of(16) as u32;
    let subgroups = subgroups(rows, n_heads, matrices);
    let (data, [rows_at, table_at], n_blocks) =
        data(rows, page_table, (subgroups * matrices.side) as usize);
    let kernel = gpu.kernel(("attention_prefill", [channels, subgroups, 0, 0]), || {
        source(matrices, channels, subgroups)
    });
    let copy = f16_copy::requested(out, rows.len(), args.q.cols);
    let mut record = gpu.record(data.len());
    let at = record.push_data(&data);
    let params = AttentionParams::new(args, group);
    let params = AttentionParams {
        rows: at + rows_at,
        page_table: at + table_at,
        blocks: at,
        flags: params.flags | if copy.is_some() { HAS_COPY } else { 0 },
        ..params
    };
    let mut all = [Bind::from(copy.as_ref()); ACCESS_WITH_COPY.len()];
    all[..ACCESS.len()].copy_from_slice(&binds(args, out));
    record.dispatch(&kernel, &params, all, [n_blocks, n_heads as u32, 1]);
    if copy.is_some() {
        out.mark_copy(CopyFormat::F16, [rows.len(), args.q.cols]);
    }
}

#[cfg(test)]
mod tests {
    use super::data;
    use crate::cpu::QueryRow;

    #[test]
    fn blocks_have_the_visible_range_of_their_rows() {
        let row =
            |first_page, kv_start, kv_len| QueryRow { first_page, n_pages: 3, kv_start, kv_len };
        let rows = [row(0, 3, 64), row(0, 60, 65), row(0, 0, 66), row(3, 130, 140), row(3, 5, 5)];
        let (data, [rows_at, table_at], n_blocks) = data(&rows, &[7; 6], 2);
        assert_eq!((rows_at, table_at, n_blocks), (15, 25, 3));
        assert_eq!(data[..15], [0, 2, 0, 3, 65, 2, 1, 0, 0, 66, 3, 2, 3, 130, 140]);
        assert_eq!((data[23], data[24], data.len()), (5, 5, 31));
    }
}
