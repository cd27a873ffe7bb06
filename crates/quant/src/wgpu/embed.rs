//! Embedding lookup in a table of any format.

use stonechat_compute::kernel_params;
use stonechat_compute::op::{EmbedArgs, EmbedInputs};
use stonechat_compute::wgpu::ops::{check_len, kernel_source};
use stonechat_compute::wgpu::{
    Access, Bind, GpuBuffer, KernelParams, Recorder, Source, Variant, WORKGROUP,
};

use super::matmul_args::with_format;
use super::matrix::GpuMatrix;
use super::planes::Format;

kernel_params! {
    struct EmbedParams {
        w_stride: u32,
        w_blocks: u32,
        rows: u32,
        cols: u32,
        slice_rows: u32,
        slice_first: u32,
        tokens: u32,
        positions: u32,
        has_positions: u32,
        scale: f32,
    }
}

/// Table, data, position embeddings, output, top-k, table again: `matrix_bindings.wgsl` has bindings 1 and 6.
const ACCESS: &[Access] =
    &[Access::Read, Access::Read, Access::Read, Access::Write, Access::Read, Access::Read];

pub(super) fn source(format: &Format, variant: Variant) -> Source {
    let name = format!("embed-{}", format.dtype);
    let source = kernel_source(name, EmbedParams::LAYOUT, ACCESS, variant, WORKGROUP)
        .file(include_str!("embed.wgsl"))
        .file(include_str!("matrix_bindings.wgsl"));
    with_format(source, format)
}

/// `out[t] = scale * table[tokens[t]] + positions[pos[t]]`. Shapes: `table` = `[V, D]`, `out` = `[T, D]`, packed. Places of
/// inputs are words of the step.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn embed(
    list: &mut Recorder,
    out: &GpuBuffer,
    args: EmbedArgs<&GpuMatrix, &GpuBuffer>,
    inputs: EmbedInputs<&GpuBuffer, usize>,
) {
    let EmbedArgs { table, positions: position_embeddings, scale } = args;
    let EmbedInputs { n_tokens, tokens, positions, top_k } = inputs;
    check_len("embed", out, n_tokens * table.k);
    let (format, variant) = (table.format, list.gpu().variant());
    let key = [format.code(), 0, 0, 0];
    let kernel = list.gpu().kernel(("embed", key), || source(format, variant));
    let chunks = table.k.div_ceil(16);
    let groups = (n_tokens * chunks).div_ceil(WORKGROUP as usize);
    for slice in table.slices.iter() {
        let params = EmbedParams {
            w_stride: table.stride() as u32,
            w_blocks: table.n_blocks() as u32,
            rows: n_tokens as u32,
            cols: table.k as u32,
            slice_rows: slice.rows as u32,
            slice_first: slice.first as u32,
            tokens: tokens as u32,
            positions: positions as u32,
            has_positions: u32::from(position_embeddings.is_some()),
            scale,
        };
        let binds = [
            Bind::Buffer(&slice.buffer),
            Bind::Step,
            position_embeddings.into(),
            Bind::Buffer(out),
            top_k.into(),
            Bind::Buffer(&slice.buffer),
        ];
        list.dispatch_linear(&kernel, &params, binds, groups);
    }
}
