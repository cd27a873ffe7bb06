//! Embedding lookup in a table of any format.

use stonechat_compute::kernel_params;
use stonechat_compute::wgpu::ops::{check_len, kernel_source};
use stonechat_compute::wgpu::{
    Access, Bind, Gpu, GpuBuffer, KernelParams, Source, Variant, WORKGROUP,
};

use super::matmul::with_format;
use super::matrix::GpuMatrix;
use super::planes::Format;

/// Arguments of [`embed`].
#[derive(Debug, Clone, Copy)]
pub struct GpuEmbed<'a> {
    /// Rows of the table, `[T]`.
    pub tokens: &'a [u32],
    /// Factor of the rows.
    pub scale: f32,
    /// Position embeddings `[n, D]` and the position of each token `[T]`, added after scaling.
    pub positions: Option<(&'a GpuBuffer, &'a [u32])>,
}

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

/// Table, data, position embeddings, output, unused, table again: `matrix_bindings.wgsl` has bindings 1 and 6.
const ACCESS: &[Access] =
    &[Access::Read, Access::Read, Access::Read, Access::Write, Access::Read, Access::Read];

pub(super) fn source(format: &Format, variant: Variant) -> Source {
    let name = format!("embed-{}", format.dtype);
    let source = kernel_source(name, EmbedParams::LAYOUT, ACCESS, variant, WORKGROUP)
        .file(include_str!("embed.wgsl"))
        .file(include_str!("matrix_bindings.wgsl"));
    with_format(source, format)
}

/// `out[t] = scale * table[tokens[t]] + positions[pos[t]]`. Shapes: `table` = `[V, D]`, `out` = `[T, D]`, packed.
///
/// # Panics
/// If the shapes do not fit or a token is not in the table.
#[track_caller]
pub fn embed(gpu: &Gpu, out: &GpuBuffer, table: &GpuMatrix, args: GpuEmbed<'_>) {
    let GpuEmbed { tokens, scale, positions } = args;
    check_len("embed", out, tokens.len() * table.k());
    let inside = tokens.iter().all(|token| (*token as usize) < table.n());
    assert!(inside, "embed: a token is outside of {} rows", table.n());
    positions.inspect(|(values, pos)| {
        assert_eq!(pos.len(), tokens.len(), "embed: a position a token");
        let rows = pos.iter().max().map_or(0, |max| *max as usize + 1);
        check_len("embed", values, rows * table.k());
    });
    let format = table.format;
    let kernel = gpu.kernel(("embed", [format.code(), 0, 0, 0]), || source(format, gpu.variant()));
    let chunks = table.k().div_ceil(16);
    let groups = (tokens.len() * chunks).div_ceil(WORKGROUP as usize);
    let mut data = tokens.to_vec();
    data.extend_from_slice(positions.map_or(&[], |(_, pos)| pos));
    for slice in table.slices.iter() {
        let mut record = gpu.record(data.len());
        let at = record.push_data(&data);
        let params = EmbedParams {
            w_stride: table.stride() as u32,
            w_blocks: table.n_blocks() as u32,
            rows: tokens.len() as u32,
            cols: table.k() as u32,
            slice_rows: slice.rows as u32,
            slice_first: slice.first as u32,
            tokens: at,
            positions: at + tokens.len() as u32,
            has_positions: u32::from(positions.is_some()),
            scale,
        };
        let values = positions.map(|(values, _)| values);
        let binds = [
            Bind::Buffer(&slice.buffer),
            Bind::Data,
            values.into(),
            Bind::Buffer(out),
            Bind::Unused,
            Bind::Buffer(&slice.buffer),
        ];
        record.dispatch_linear(&kernel, &params, binds, groups);
    }
}
