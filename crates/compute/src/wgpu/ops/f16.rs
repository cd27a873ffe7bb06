//! Operands in f16, for GEMM by cooperative matrices. Values beyond the largest f16 are clamped to it.

use super::operand::COLUMNS;
use super::{GpuRows, kernel_source};
use crate::kernel_params;
use crate::wgpu::{Access, Bind, GpuBuffer, KernelParams, Recorder, Source, Variant, WORKGROUP};

/// WGSL of `pack_f16x4`.
pub const PACK: &str = include_str!("pack_f16.wgsl");

const ACCESS: &[Access] = &[Access::Read, Access::Write];

kernel_params! {
    struct ConvertF16Params {
        rows: u32,
        cols: u32,
        src_offset: u32,
        src_stride: u32,
        dst_cols: u32,
    }
}

pub(super) fn source(variant: Variant) -> Source {
    let name = format!("convert_f16-{}", variant.name());
    kernel_source(name, ConvertF16Params::LAYOUT, ACCESS, variant, WORKGROUP)
        .file(PACK)
        .file(include_str!("convert_f16.wgsl"))
}

/// Rounds `x` to `out`, `[rows, padded]`; columns beyond those of `x` are zero.
pub(super) fn convert(list: &mut Recorder, out: &GpuBuffer, x: GpuRows<'_>) {
    let padded = x.cols.next_multiple_of(COLUMNS);
    let params = ConvertF16Params {
        rows: x.rows as u32,
        cols: x.cols as u32,
        src_offset: x.offset as u32,
        src_stride: x.stride as u32,
        dst_cols: padded as u32,
    };
    let groups = (x.rows * padded / 8).div_ceil(WORKGROUP as usize);
    let kernel = list.gpu().kernel(("convert_f16", [0; 4]), || source(list.gpu().variant()));
    list.dispatch_linear(&kernel, &params, [x.buffer.into(), Bind::Buffer(out)], groups);
}
