//! Rows rounded to f16, for kernels that multiply f16.

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};

use super::{GpuRows, start};
use crate::wgpu::{Access, Bind, Gpu, GpuBuffer, Kernel, Source, Variant, WORKGROUP};

const ACCESS: &[Access] = &[Access::Read, Access::Write];

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    rows: u32,
    cols: u32,
    src_offset: u32,
    src_stride: u32,
    dst_cols: u32,
}

pub(super) fn source(variant: Variant) -> Source {
    start(format!("halves-{}", variant.name()), ACCESS, variant, WORKGROUP)
        .file(include_str!("halves.wgsl"))
}

fn kernel(gpu: &Gpu) -> Arc<Kernel> {
    gpu.kernel(("halves", [0; 4]), || source(gpu.variant()))
}

/// Writes the rows of `src` to `dst` as f16, one after the other and each followed by zeros up to `dst_cols`, a
/// multiple of 8; what is beyond the largest f16 becomes that.
///
/// # Panics
/// If they do not fit.
#[track_caller]
pub fn halves(gpu: &Gpu, dst: &GpuBuffer, dst_cols: usize, src: GpuRows<'_>) {
    let src = src.checked();
    assert!(dst_cols >= src.cols && dst_cols.is_multiple_of(8), "halves: {dst_cols} columns");
    assert!(2 * src.rows * dst_cols <= dst.bytes(), "halves: {} bytes", dst.bytes());
    let params = Params {
        rows: src.rows as u32,
        cols: src.cols as u32,
        src_offset: src.offset as u32,
        src_stride: src.stride as u32,
        dst_cols: dst_cols as u32,
    };
    let groups = (src.rows * dst_cols / 8).div_ceil(WORKGROUP as usize);
    let binds = [src.buffer.into(), Bind::Buffer(dst)];
    gpu.record(0).dispatch_line(&kernel(gpu), &params, binds, groups);
}
