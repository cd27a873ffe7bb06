//! Attention of many rows by cooperative matrices, over pages of f16.
//!
//! A workgroup takes a block of query rows with the same pages and one query head, and walks the positions that
//! any of them sees once. Queries and weights of the softmax are rounded to f16, sums are f32. The weights
//! refer to a maximum that may lag behind by a constant factor, so that sums are scaled only
//! where it grows much: matrices give no access to their rows.

use super::attention::{ACCESS, ACCESS_WITH_TWIN, Attention, HAS_TWIN, PARAMS, Params, binds};
use super::{ACTIVATIONS, halves, start};
use crate::cpu::{KvDType, PAGE_LEN, QueryRow};
use crate::wgpu::{Bind, Gpu, GpuBuffer, Matrices, Source, TwinKind, Variant};

/// Subgroups of a workgroup, each of which has the rows of one matrix: more where there are enough blocks of so many,
/// since they share keys and values.
const SUBGROUPS: [u32; 2] = [8, 4];
/// Blocks that keep a large device busy.
const ENOUGH_BLOCKS: usize = 160;
/// Positions that are looked at together.
const POSITIONS: u32 = 16;
/// Widest head whose sums fit the registers.
const MAX_HEAD_DIM: usize = 256;
/// Rows of a sequence from which on a block of them is worth its empty places.
const MIN_ROWS: usize = 16;

/// For heads of `channels`, a multiple of 16.
fn source(matrices: Matrices, channels: u32, subgroups: u32) -> Source {
    let name = format!("attention_blocks-f16-{channels}x{subgroups}");
    start(name, ACCESS_WITH_TWIN, Variant::Subgroups, subgroups * matrices.subgroup)
        .with_matrices(matrices)
        .constant("POS", POSITIONS)
        .constant("CHANNELS", channels)
        .constant("PAGE", PAGE_LEN as u32)
        .file(ACTIVATIONS)
        .file(PARAMS)
        .file(halves::VALUES)
        .unrolled(include_str!("attention_blocks.wgsl"), &[("CHANNELS", channels / matrices.side)])
}

pub(super) fn sources(matrices: Matrices) -> Vec<Source> {
    let of = |channels| SUBGROUPS.map(|subgroups| source(matrices, channels, subgroups));
    [16, 64, 80, 128, 256].map(of).concat()
}

/// Whether [`attention`] is for these rows and pages.
pub(super) fn serves(gpu: &Gpu, args: &Attention<'_>) -> bool {
    let layout = args.kv.layout;
    let n_sequences = args.rows.chunk_by(QueryRow::has_pages_of).count();
    gpu.matrices().is_some()
        && layout.dtype == KvDType::F16
        && layout.head_dim.is_multiple_of(8)
        && layout.head_dim <= MAX_HEAD_DIM
        && args.rows.len() >= MIN_ROWS * n_sequences
}

/// Subgroups of the workgroups for `rows`.
fn subgroups(rows: &[QueryRow], n_heads: usize, matrices: Matrices) -> u32 {
    let [large, small] = SUBGROUPS;
    let most = (large * matrices.side) as usize;
    let runs = rows.chunk_by(QueryRow::has_pages_of);
    let n_blocks: usize = runs.map(|run| run.len().div_ceil(most)).sum();
    if n_blocks * n_heads >= ENOUGH_BLOCKS { large } else { small }
}

/// What the kernel reads of blocks of at most `most` rows, of rows and pages, where rows and pages begin in it,
/// and the number of blocks.
fn data(rows: &[QueryRow], page_table: &[u32], most: usize) -> (Vec<u32>, [u32; 2], u32) {
    let mut data = Vec::new();
    let mut first = 0;
    for run in rows.chunk_by(QueryRow::has_pages_of) {
        for block in run.chunks(most) {
            let seen = block.iter().filter(|row| row.kv_len > row.kv_start);
            let low = seen.clone().map(|row| row.kv_start).min().unwrap_or(0);
            let high = seen.map(|row| row.kv_len).max().unwrap_or(0);
            data.extend([first, block.len() as u32, block[0].first_page, low, high]);
            first += block.len() as u32;
        }
    }
    let rows_at = data.len();
    data.extend(rows.iter().flat_map(|row| [row.kv_start, row.kv_len]));
    let table_at = data.len();
    data.extend_from_slice(page_table);
    (data, [rows_at as u32, table_at as u32], (rows_at / 5) as u32)
}

/// What [`attention`](super::attention::attention) documents, of shapes that were checked; `group` query heads read a
/// KV head.
pub(super) fn attention(gpu: &Gpu, out: &GpuBuffer, args: &Attention<'_>, group: usize) {
    let Attention { kv, n_heads, rows, page_table, .. } = *args;
    let Some(matrices) = gpu.matrices() else { return };
    let channels = kv.layout.head_dim.next_multiple_of(16) as u32;
    let subgroups = subgroups(rows, n_heads, matrices);
    let (data, [rows_at, table_at], n_blocks) =
        data(rows, page_table, (subgroups * matrices.side) as usize);
    let kernel = gpu.kernel(("attention_blocks", [channels, subgroups, 0, 0]), || {
        source(matrices, channels, subgroups)
    });
    let halves = halves::wanted(out, rows.len(), args.q.cols);
    let mut record = gpu.record(data.len());
    let at = record.words(&data);
    let params = Params::new(args, group);
    let params = Params {
        rows: at + rows_at,
        page_table: at + table_at,
        blocks: at,
        flags: params.flags | if halves.is_some() { HAS_TWIN } else { 0 },
        ..params
    };
    let mut all = [Bind::from(halves.as_ref()); ACCESS_WITH_TWIN.len()];
    all[..ACCESS.len()].copy_from_slice(&binds(args, out));
    record.dispatch(&kernel, &params, all, [n_blocks, n_heads as u32, 1]);
    if halves.is_some() {
        out.set_twin(TwinKind::Halves, [rows.len(), args.q.cols]);
    }
}

#[cfg(test)]
mod tests {
    use super::data;
    use crate::cpu::QueryRow;

    #[test]
    fn blocks_say_what_their_rows_see() {
        let row =
            |first_page, kv_start, kv_len| QueryRow { first_page, n_pages: 3, kv_start, kv_len };
        let rows = [row(0, 3, 64), row(0, 60, 65), row(0, 0, 66), row(3, 130, 140), row(3, 5, 5)];
        let (data, [rows_at, table_at], n_blocks) = data(&rows, &[7; 6], 2);
        assert_eq!((rows_at, table_at, n_blocks), (15, 25, 3));
        assert_eq!(data[..15], [0, 2, 0, 3, 65, 2, 1, 0, 0, 66, 3, 2, 3, 130, 140]);
        assert_eq!((data[23], data[24], data.len()), (5, 5, 31));
    }
}
