//! Prefill attention (16 rows or more a sequence) by cooperative matrices, over f16 pages.
//!
//! A workgroup takes a block of query rows with the same pages, and one query head. It walks the positions visible to
//! any of the rows once, see the pseudo-code in `attention_prefill.wgsl`. Queries and softmax weights are rounded to
//! f16; sums are f32.

use super::attention_args::{
    ACCESS, ACCESS_WITH_OPERAND, Attention, AttentionGrid, AttentionKernel, AttentionParams,
    AttentionShape, binds, blocks, with_params,
};
use super::f16;
use super::kernel::{ACTIVATIONS, kernel_source};
use super::operand::GpuOutput;
use crate::op::{KvDType, PAGE_LEN, QueryRow};
use crate::wgpu::{CoopMatrices, Gpu, KernelParams, Recorder, Source, Variant};

/// Subgroups in a workgroup, each with the query rows of one matrix. 8 share keys and values among more rows; 4 where
/// 8 would give too few workgroups.
const SUBGROUPS: [u32; 2] = [8, 4];
/// Workgroups that fill a large device.
const MIN_GROUPS: usize = 160;
/// Positions in a step.
const POSITIONS: u32 = 16;
/// Maximum channels of a head: its sums must fit the registers.
const MAX_HEAD_DIM: usize = 256;
/// Minimum mean number of rows per sequence: a block with fewer has too many empty rows.
const MIN_ROWS: usize = 16;

/// Shader for heads of `channels` channels, a multiple of 16.
fn source(matrices: CoopMatrices, channels: u32, subgroups: u32) -> Source {
    let name = format!("attention_prefill-f16-{channels}x{subgroups}");
    let (access, workgroup) = (ACCESS_WITH_OPERAND, subgroups * matrices.subgroup);
    let source =
        kernel_source(name, AttentionParams::LAYOUT, access, Variant::Subgroups, workgroup)
            .with_matrices(matrices)
            .constant("STEP", POSITIONS)
            .constant("CHANNELS", channels)
            .constant("PAGE", PAGE_LEN as u32)
            .file(ACTIVATIONS)
            .file(f16::PACK);
    with_params(source)
        .unrolled(include_str!("attention_prefill.wgsl"), &[("CHANNELS", channels / matrices.side)])
}

pub(super) fn sources(matrices: CoopMatrices) -> Vec<Source> {
    let of = |channels| SUBGROUPS.map(|subgroups| source(matrices, channels, subgroups));
    [16, 64, 80, 128, 256].map(of).concat()
}

/// Division of the rows, if [`attention`] supports the device, the layout and the rows.
pub(super) fn grid(gpu: &Gpu, shape: AttentionShape, rows: &[QueryRow]) -> Option<AttentionGrid> {
    let AttentionShape { n_heads, layout } = shape;
    let matrices = gpu.matrices()?;
    let n_sequences = rows.chunk_by(QueryRow::has_pages_of).count();
    let is_supported = layout.dtype == KvDType::F16
        && layout.head_dim.is_multiple_of(8)
        && layout.head_dim <= MAX_HEAD_DIM
        && rows.len() >= MIN_ROWS * n_sequences;
    let [large, small] = SUBGROUPS;
    let max_rows = |subgroups| (subgroups * matrices.side) as usize;
    let n_blocks = |subgroups| blocks(rows, max_rows(subgroups)).count();
    let subgroups = if n_blocks(large) * n_heads >= MIN_GROUPS { large } else { small };
    is_supported.then(|| AttentionGrid {
        kernel: AttentionKernel::Prefill(subgroups),
        n_rows: rows.len(),
        n_blocks: n_blocks(subgroups),
        block_rows: max_rows(subgroups),
        n_splits: 1,
        per_split: 0,
    })
}

/// [`attention`](super::attention::attention) with checked arguments.
pub(super) fn attention(
    list: &mut Recorder,
    out: GpuOutput<'_>,
    args: &Attention<'_>,
    subgroups: u32,
) {
    let Some(matrices) = list.gpu().matrices() else { return };
    let channels = args.kv.layout.head_dim.next_multiple_of(16) as u32;
    let kernel = list.gpu().kernel(("attention_prefill", [channels, subgroups, 0, 0]), || {
        source(matrices, channels, subgroups)
    });
    let params = AttentionParams::new(args, out.operand.is_some());
    let [values, operand] = out.binds();
    let mut all = [operand; ACCESS_WITH_OPERAND.len()];
    all[..ACCESS.len()].copy_from_slice(&binds(args, values));
    list.dispatch(&kernel, &params, all, [args.grid.n_blocks as u32, args.op.n_heads as u32, 1]);
}
