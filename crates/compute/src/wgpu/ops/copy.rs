//! Moving rows: copies between strides, and the windows of a convolution.

use bytemuck::{Pod, Zeroable};

use super::{Beside, GpuRows, Spec, start};
use crate::wgpu::{Access, Bind, Gpu, GpuBuffer, Source, Variant, WORKGROUP};

pub(super) const SPEC: Spec = Spec {
    name: "copy",
    access: &[Access::Read, Access::Write],
    workgroup: WORKGROUP,
    files: &[include_str!("copy.wgsl")],
    beside: Beside::Nothing,
};

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    rows: u32,
    cols: u32,
    src_offset: u32,
    src_stride: u32,
    dst_offset: u32,
    dst_cols: u32,
}

/// Copies the rows of `src` one after the other to `dst[offset..]`, each followed by zeros up to `dst_cols`.
///
/// # Panics
/// If they do not fit.
#[track_caller]
pub fn copy(gpu: &Gpu, dst: &GpuBuffer, offset: usize, dst_cols: usize, src: GpuRows<'_>) {
    let src = src.checked();
    assert!(dst_cols >= src.cols, "copy: {} columns to {dst_cols}", src.cols);
    super::check_len("copy", dst, offset + src.rows * dst_cols);
    let params = Params {
        rows: src.rows as u32,
        cols: src.cols as u32,
        src_offset: src.offset as u32,
        src_stride: src.stride as u32,
        dst_offset: offset as u32,
        dst_cols: dst_cols as u32,
    };
    let groups = (src.rows * dst_cols).div_ceil(WORKGROUP as usize);
    let kernel = SPEC.kernel(gpu);
    let binds = [src.buffer.into(), Bind::Buffer(dst)];
    gpu.record(0).dispatch_line(&kernel, &params, binds, groups);
}

const WINDOWS: &[Access] = &[Access::Read, Access::Write];

pub(super) fn im2col_source(variant: Variant) -> Source {
    start(format!("im2col-{}", variant.name()), WINDOWS, variant, WORKGROUP)
        .file(include_str!("im2col.wgsl"))
}

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Windows {
    rows: u32,
    frames: u32,
    cols: u32,
    src_offset: u32,
    src_stride: u32,
    step: u32,
    dst_cols: u32,
}

/// Writes the windows of a convolution with kernel 3 and padding 1 to `dst`: row `t` holds frames
/// `t * step - 1 ..= t * step + 1` of `src`, zeros outside it and up to `dst_cols`.
///
/// # Panics
/// If they do not fit.
#[track_caller]
pub fn im2col(gpu: &Gpu, dst: &GpuBuffer, dst_cols: usize, step: usize, src: GpuRows<'_>) {
    let src = src.checked();
    let rows = src.rows.div_ceil(step);
    assert!(dst_cols >= 3 * src.cols, "im2col: {} columns to {dst_cols}", src.cols);
    super::check_len("im2col", dst, rows * dst_cols);
    let params = Windows {
        rows: rows as u32,
        frames: src.rows as u32,
        cols: src.cols as u32,
        src_offset: src.offset as u32,
        src_stride: src.stride as u32,
        step: step as u32,
        dst_cols: dst_cols as u32,
    };
    let groups = (rows * dst_cols).div_ceil(WORKGROUP as usize);
    let kernel = gpu.kernel(("im2col", [0; 4]), || im2col_source(gpu.variant()));
    let binds = [src.buffer.into(), Bind::Buffer(dst)];
    gpu.record(0).dispatch_line(&kernel, &params, binds, groups);
}
