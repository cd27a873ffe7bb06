//! Copies of activations in f16, for GEMM by cooperative matrices.
//!
//! Values beyond the largest f16 are clamped to it. See `activation_copy` for when a copy is
//! written.

use std::sync::Arc;

use super::{GpuRows, activation_copy, kernel_source};
use crate::wgpu::{
    Access, Bind, CopyFormat, Gpu, GpuBuffer, Kernel, KernelParams, Source, Variant, WORKGROUP,
};
use crate::{Result, kernel_params};

/// Columns that GEMM reads at a time; copies are padded to a multiple.
pub const COLUMNS: usize = 64;
/// WGSL of `pack_f16x4`.
pub const PACK: &str = include_str!("pack_f16.wgsl");

const ACCESS: &[Access] = &[Access::Read, Access::Write];

kernel_params! {
    struct F16CopyParams {
        rows: u32,
        cols: u32,
        src_offset: u32,
        src_stride: u32,
        dst_cols: u32,
    }
}

pub(super) fn source(variant: Variant) -> Source {
    let name = format!("f16_copy-{}", variant.name());
    kernel_source(name, F16CopyParams::LAYOUT, ACCESS, variant, WORKGROUP)
        .file(PACK)
        .file(include_str!("f16_copy.wgsl"))
}

fn kernel(gpu: &Gpu) -> Arc<Kernel> {
    gpu.kernel(("f16_copy", [0; 4]), || source(gpu.variant()))
}

/// Returns `x` in f16, `[rows, padded]`: the cached copy if it is current, else a conversion. `padded`, a multiple of
/// [`COLUMNS`], is the row length; columns beyond those of `x` are zero.
///
/// # Errors
/// If the device is out of memory.
pub fn copy_of(gpu: &Gpu, x: GpuRows<'_>, padded: usize) -> Result<GpuBuffer> {
    let x = x.checked();
    debug_assert!(padded.is_multiple_of(COLUMNS) && padded >= x.cols);
    let (shape, bytes) = ([x.rows, padded], 2 * x.rows * padded);
    let (out, is_current) = activation_copy::destination(gpu, CopyFormat::F16, x, (bytes, shape))?;
    if is_current {
        return Ok(out);
    }
    let params = F16CopyParams {
        rows: x.rows as u32,
        cols: x.cols as u32,
        src_offset: x.offset as u32,
        src_stride: x.stride as u32,
        dst_cols: padded as u32,
    };
    let groups = (x.rows * padded / 8).div_ceil(WORKGROUP as usize);
    let binds = [x.buffer.into(), Bind::Buffer(&out)];
    gpu.record(0).dispatch_linear(&kernel(gpu), &params, binds, groups);
    if x.is_packed() {
        x.buffer.mark_copy(CopyFormat::F16, shape);
    }
    Ok(out)
}

/// Allocates the f16 copy of `out`, `[rows, cols]`, for a kernel to write; `cols` is a multiple of [`COLUMNS`]. Call
/// [`GpuBuffer::mark_copy`] after its dispatch.
///
/// # Errors
/// If the device is out of memory.
pub fn allocate(gpu: &Gpu, out: &GpuBuffer, rows: usize, cols: usize) -> Result<GpuBuffer> {
    out.copy_for(gpu, CopyFormat::F16, 2 * rows * cols, [rows, cols]).map(|(copy, _)| copy)
}

/// F16 copy of `out`, `[rows, cols]`, for a kernel to write, if a matmul of at most `rows` rows requested it before. Call
/// [`GpuBuffer::mark_copy`] after the dispatch.
#[must_use]
pub fn requested(out: &GpuBuffer, rows: usize, cols: usize) -> Option<GpuBuffer> {
    if !cols.is_multiple_of(COLUMNS) {
        return None;
    }
    out.requested_copy(CopyFormat::F16, 2 * rows * cols, rows)
}
