//! Activations in 8 bits: int8 with one f32 scale for 32 values, as the CPU's products take them.
//!
//! They lie beside the buffer that they come from, which knows whether they still are its values. The first
//! product that asks makes room for them; from then on kernels that write the buffer write them too.
//!
//! ```text
//! row  = codes | heads       rounded up to 16 bytes
//! code = int8, 32 for a head
//! head = scale (f32), sums of the codes of the first and the last 16 values (2 x i16)
//! ```

use bytemuck::{Pod, Zeroable};

use super::{Beside, GpuRows, Spec, twin};
use crate::Result;
use crate::wgpu::{Access, Bind, Gpu, GpuBuffer, Source, TwinKind, Variant};

/// Values that share a scale.
pub const GROUP_LEN: usize = 32;
/// Invocations of a workgroup, which take four values each.
const ROW: u32 = 256;

pub(super) const SPEC: Spec = Spec {
    name: "quantize",
    access: &[Access::Read, Access::Write],
    workgroup: ROW,
    files: &[include_str!("quantize.wgsl")],
    beside: Beside::Codes,
};

/// The functions that make 8 bits of values.
pub const VALUES: &str = include_str!("quantize_values.wgsl");

/// Appends `quantize4` and [`VALUES`], which kernels write quantized values with.
#[must_use]
pub fn writer(source: Source, variant: Variant) -> Source {
    let source = source.file(VALUES).file(include_str!("quantize4.wgsl"));
    source.file(match variant {
        Variant::Portable => include_str!("quantize4.portable.wgsl"),
        Variant::Subgroups => include_str!("quantize4.subgroups.wgsl"),
    })
}

/// Vectors of 16 bytes of a row of `cols` values.
#[must_use]
pub fn row_vectors(cols: usize) -> usize {
    let n_groups = cols.div_ceil(GROUP_LEN);
    2 * n_groups + n_groups.div_ceil(2)
}

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    rows: u32,
    cols: u32,
    offset: u32,
    stride: u32,
    /// Values of a row beyond `cols` that are zeros.
    padded: u32,
}

/// `x` in 8 bits, rows padded with zeros to `padded` values, a multiple of [`GROUP_LEN`]: what the kernel
/// that wrote it left, or made now.
///
/// # Errors
/// If there is no room for them.
pub fn quantized(gpu: &Gpu, x: GpuRows<'_>, padded: usize) -> Result<GpuBuffer> {
    debug_assert!(padded.is_multiple_of(GROUP_LEN) && padded >= x.cols);
    let (shape, bytes) = ([x.rows, padded], 16 * x.rows * row_vectors(padded));
    let (out, is_there) = twin::place(gpu, TwinKind::Codes, x, (bytes, shape))?;
    if is_there {
        return Ok(out);
    }
    let params = Params {
        rows: x.rows as u32,
        cols: x.cols as u32,
        offset: x.offset as u32,
        stride: x.stride as u32,
        padded: padded as u32,
    };
    let kernel = SPEC.kernel(gpu);
    let pieces = padded.div_ceil(4 * ROW as usize);
    let binds = [x.buffer.into(), Bind::Buffer(&out)];
    gpu.record(0).dispatch_line(&kernel, &params, binds, x.rows * pieces);
    if x.is_packed() {
        x.buffer.set_twin(TwinKind::Codes, shape);
    }
    Ok(out)
}

/// Where a kernel that writes `rows × cols` values of `out` leaves them in 8 bits too, if any product wants
/// them so; [`GpuBuffer::set_twin`] follows its dispatch.
#[must_use]
pub fn wanted(out: &GpuBuffer, rows: usize, cols: usize) -> Option<GpuBuffer> {
    if !cols.is_multiple_of(GROUP_LEN) {
        return None;
    }
    out.wanted_twin(TwinKind::Codes, 16 * rows * row_vectors(cols), rows)
}
