//! Copies of activations in q8, for GEMV: int8 with one f32 scale per group of 32, as the CPU quantizes them.
//!
//! ```text
//! row    = quants | headers                       padded to 16 bytes
//! quants = i8 x cols
//! header = scale (f32) | sum of quants 0..16 (i16) | sum of quants 16..32 (i16)     one a group
//! ```
//!
//! The sums multiply the offsets (mins) of weight formats. See `activation_copy` for when a
//! copy is written.

use super::{CopyWriter, GpuRows, KernelSpec, activation_copy};
use crate::wgpu::{Access, Bind, CopyFormat, Gpu, GpuBuffer, KernelParams, Source, Variant};
use crate::{Result, kernel_params};

/// Values that share a scale.
pub const GROUP_LEN: usize = 32;
/// Invocations in a workgroup, each with four values.
const WORKGROUP: u32 = 256;

pub(super) const SPEC: KernelSpec = KernelSpec {
    name: "q8_copy",
    params: Q8CopyParams::LAYOUT,
    access: &[Access::Read, Access::Write],
    workgroup: WORKGROUP,
    files: &[include_str!("q8_copy.wgsl")],
    copy_writer: CopyWriter::Q8,
};

/// WGSL functions that quantize values.
pub const PACK: &str = include_str!("pack_q8.wgsl");

/// Appends [`PACK`] and `quantize4`, with which kernels write a q8 copy.
#[must_use]
pub fn with_quantize4(source: Source, variant: Variant) -> Source {
    let source = source.file(PACK).file(include_str!("store_q8.wgsl"));
    source.file(match variant {
        Variant::Portable => include_str!("quantize4.portable.wgsl"),
        Variant::Subgroups => include_str!("quantize4.subgroups.wgsl"),
    })
}

/// Row length in vectors of 16 bytes, for `cols` values.
#[must_use]
pub fn row_vectors(cols: usize) -> usize {
    let n_groups = cols.div_ceil(GROUP_LEN);
    2 * n_groups + n_groups.div_ceil(2)
}

kernel_params! {
    struct Q8CopyParams {
        rows: u32,
        cols: u32,
        offset: u32,
        stride: u32,
        /// Columns of the copy; those from `cols` on are zero.
        padded: u32,
    }
}

/// Returns `x` in q8, `[rows, padded]`: the cached copy if it is current, else a conversion. `padded`, a multiple of
/// [`GROUP_LEN`], is the row length; columns beyond those of `x` are zero.
///
/// # Errors
/// If the device is out of memory.
pub fn copy_of(gpu: &Gpu, x: GpuRows<'_>, padded: usize) -> Result<GpuBuffer> {
    debug_assert!(padded.is_multiple_of(GROUP_LEN) && padded >= x.cols);
    let (shape, bytes) = ([x.rows, padded], 16 * x.rows * row_vectors(padded));
    let (out, is_current) = activation_copy::destination(gpu, CopyFormat::Q8, x, (bytes, shape))?;
    if is_current {
        return Ok(out);
    }
    let params = Q8CopyParams {
        rows: x.rows as u32,
        cols: x.cols as u32,
        offset: x.offset as u32,
        stride: x.stride as u32,
        padded: padded as u32,
    };
    let kernel = SPEC.kernel(gpu);
    let groups_per_row = padded.div_ceil(4 * WORKGROUP as usize);
    let binds = [x.buffer.into(), Bind::Buffer(&out)];
    gpu.record(0).dispatch_linear(&kernel, &params, binds, x.rows * groups_per_row);
    if x.is_packed() {
        x.buffer.mark_copy(CopyFormat::Q8, shape);
    }
    Ok(out)
}

/// Q8 copy of `out`, `[rows, cols]`, for a kernel to write, if a matmul of at most `rows` rows requested it before. Call
/// [`GpuBuffer::mark_copy`] after the dispatch.
#[must_use]
pub fn requested(out: &GpuBuffer, rows: usize, cols: usize) -> Option<GpuBuffer> {
    if !cols.is_multiple_of(GROUP_LEN) {
        return None;
    }
    out.requested_copy(CopyFormat::Q8, 16 * rows * row_vectors(cols), rows)
}
