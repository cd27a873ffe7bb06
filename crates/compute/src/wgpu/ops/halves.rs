//! Rows rounded to f16, for kernels that multiply f16.
//!
//! As those [in 8 bits](super::quantize) they lie beside the buffer that they come from; from the first product that
//! asks for them on, kernels that write the buffer write them too.

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};

use super::{GpuRows, start, twin};
use crate::Result;
use crate::wgpu::{Access, Bind, Gpu, GpuBuffer, Kernel, Source, TwinKind, Variant, WORKGROUP};

/// Rows are as long as a multiple of this, which a product reads at a time.
pub const COLUMNS: usize = 64;
/// The function that makes f16 of values.
pub const VALUES: &str = include_str!("halves_values.wgsl");

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
        .file(VALUES)
        .file(include_str!("halves.wgsl"))
}

fn kernel(gpu: &Gpu) -> Arc<Kernel> {
    gpu.kernel(("halves", [0; 4]), || source(gpu.variant()))
}

/// `x` as f16, rows followed by zeros up to `padded` values, a multiple of [`COLUMNS`], and what is beyond the largest
/// f16 as that: what the kernel that wrote it left, or made now.
///
/// # Errors
/// If there is no room for them.
pub fn halves(gpu: &Gpu, x: GpuRows<'_>, padded: usize) -> Result<GpuBuffer> {
    let x = x.checked();
    debug_assert!(padded.is_multiple_of(COLUMNS) && padded >= x.cols);
    let (shape, bytes) = ([x.rows, padded], 2 * x.rows * padded);
    let (out, is_there) = twin::place(gpu, TwinKind::Halves, x, (bytes, shape))?;
    if is_there {
        return Ok(out);
    }
    let params = Params {
        rows: x.rows as u32,
        cols: x.cols as u32,
        src_offset: x.offset as u32,
        src_stride: x.stride as u32,
        dst_cols: padded as u32,
    };
    let groups = (x.rows * padded / 8).div_ceil(WORKGROUP as usize);
    let binds = [x.buffer.into(), Bind::Buffer(&out)];
    gpu.record(0).dispatch_line(&kernel(gpu), &params, binds, groups);
    if x.is_packed() {
        x.buffer.set_twin(TwinKind::Halves, shape);
    }
    Ok(out)
}

/// Where a kernel that writes `rows × cols` values of `out`, whole [`COLUMNS`], leaves them as f16;
/// [`GpuBuffer::set_twin`] follows its dispatch.
///
/// # Errors
/// If there is no room for them.
pub fn room(gpu: &Gpu, out: &GpuBuffer, rows: usize, cols: usize) -> Result<GpuBuffer> {
    out.twin_for(gpu, TwinKind::Halves, 2 * rows * cols, [rows, cols]).map(|(twin, _)| twin)
}

/// Where a kernel that writes `rows × cols` values of `out` leaves them as f16 too, if any product of so many rows
/// wants them so; [`GpuBuffer::set_twin`] follows its dispatch.
#[must_use]
pub fn wanted(out: &GpuBuffer, rows: usize, cols: usize) -> Option<GpuBuffer> {
    if !cols.is_multiple_of(COLUMNS) {
        return None;
    }
    out.wanted_twin(TwinKind::Halves, 2 * rows * cols, rows)
}
