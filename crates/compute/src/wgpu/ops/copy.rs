//! Copies of rows between strides and of listed rows, and im2col of a convolution.

use super::kernel::{GpuRows, KernelSpec};
use crate::check_at_most;
use crate::kernel_params;
use crate::wgpu::{Access, Bind, GpuBuffer, Recorder, WORKGROUP};

pub(super) const SPEC: KernelSpec = KernelSpec::new::<CopyParams>(
    "copy",
    &[Access::Read, Access::Write],
    &[include_str!("copy.wgsl")],
);

kernel_params! {
    struct CopyParams {
        rows: u32,
        cols: u32,
        src_offset: u32,
        src_stride: u32,
        dst_offset: u32,
        dst_cols: u32,
    }
}

/// Copies the rows of `src` to `dst[offset..]`, packed, each padded with zeros to `dst_cols`.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn copy(
    list: &mut Recorder,
    dst: &GpuBuffer,
    offset: usize,
    dst_cols: usize,
    src: GpuRows<'_>,
) {
    let src = src.checked();
    check_at_most!(src.cols, dst_cols, "copy: columns");
    super::check_len("copy", dst, offset + src.rows * dst_cols);
    let params = CopyParams {
        rows: src.rows as u32,
        cols: src.cols as u32,
        src_offset: src.offset as u32,
        src_stride: src.stride as u32,
        dst_offset: offset as u32,
        dst_cols: dst_cols as u32,
    };
    let groups = (src.rows * dst_cols).div_ceil(WORKGROUP as usize);
    let kernel = SPEC.kernel(list.gpu());
    let binds = [src.buffer.into(), Bind::Buffer(dst)];
    list.dispatch_linear(&kernel, &params, binds, groups);
}

pub(super) const GATHER: KernelSpec = KernelSpec::new::<GatherParams>(
    "gather",
    &[Access::Read, Access::Read, Access::Write],
    &[include_str!("gather.wgsl")],
);

kernel_params! {
    struct GatherParams {
        rows: u32,
        cols: u32,
        src_offset: u32,
        src_stride: u32,
        list: u32,
    }
}

/// `dst[i] = src[row i]`, packed, for `n` rows whose indexes are inputs of the step, from word `first` on.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn gather(list: &mut Recorder, dst: &GpuBuffer, src: GpuRows<'_>, (first, n): (usize, usize)) {
    let src = src.checked();
    super::check_len("gather", dst, n * src.cols);
    let params = GatherParams {
        rows: n as u32,
        cols: src.cols as u32,
        src_offset: src.offset as u32,
        src_stride: src.stride as u32,
        list: first as u32,
    };
    let groups = (n * src.cols).div_ceil(WORKGROUP as usize);
    let kernel = GATHER.kernel(list.gpu());
    let binds = [Bind::Step, src.buffer.into(), Bind::Buffer(dst)];
    list.dispatch_linear(&kernel, &params, binds, groups);
}

pub(super) const IM2COL: KernelSpec = KernelSpec::new::<Im2colParams>(
    "im2col",
    &[Access::Read, Access::Write],
    &[include_str!("im2col.wgsl")],
);

kernel_params! {
    struct Im2colParams {
        rows: u32,
        frames: u32,
        cols: u32,
        src_offset: u32,
        src_stride: u32,
        step: u32,
        dst_cols: u32,
    }
}

/// Im2col of a convolution with kernel 3, padding 1 and stride `step`: row `t` of `dst` holds frames
/// `t * step - 1 ..= t * step + 1` of `src`, zeros outside of it, padded with zeros to `dst_cols`.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn im2col(
    list: &mut Recorder,
    dst: &GpuBuffer,
    dst_cols: usize,
    step: usize,
    src: GpuRows<'_>,
) {
    let src = src.checked();
    let rows = src.rows.div_ceil(step);
    check_at_most!(3 * src.cols, dst_cols, "im2col: columns of the taps");
    super::check_len("im2col", dst, rows * dst_cols);
    let params = Im2colParams {
        rows: rows as u32,
        frames: src.rows as u32,
        cols: src.cols as u32,
        src_offset: src.offset as u32,
        src_stride: src.stride as u32,
        step: step as u32,
        dst_cols: dst_cols as u32,
    };
    let groups = (rows * dst_cols).div_ceil(WORKGROUP as usize);
    let kernel = IM2COL.kernel(list.gpu());
    let binds = [src.buffer.into(), Bind::Buffer(dst)];
    list.dispatch_linear(&kernel, &params, binds, groups);
}
