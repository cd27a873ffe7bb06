//! Cached copies of activations in f16 or q8, for the matmuls that read them.
//!
//! ```text
//! matmul reads x       : copy = destination(x)          allocates the copy of x's buffer, if it has none
//!                        convert x, unless the copy is current
//! kernel writes out    : OutputCopy::requested(out)     the copy, if a matmul of so few rows requested one before
//!                        write out and the copy, then mark the copy as current
//! other write of out   : the recorder marks the copies of out as stale
//! ```

use super::{GpuRows, f16_copy, q8_copy};
use crate::Result;
use crate::wgpu::{CopyFormat, Gpu, GpuBuffer, Source, Variant};

/// Values of the kernel parameter `copy_format`.
const COPY_NONE: u32 = 0;
const COPY_Q8: u32 = 1;
const COPY_F16: u32 = 2;

/// Copy that a kernel writes besides its output.
#[derive(Debug)]
pub(super) struct OutputCopy {
    format: CopyFormat,
    pub(super) buffer: GpuBuffer,
}

impl OutputCopy {
    /// Copy requested by matmuls that read `[rows, cols]` values of `out`: f16 (GEMM) before q8 (GEMV).
    pub(super) fn requested(out: &GpuBuffer, rows: usize, cols: usize) -> Option<Self> {
        let f16 = f16_copy::requested(out, rows, cols);
        f16.map(|buffer| Self { format: CopyFormat::F16, buffer }).or_else(|| {
            let buffer = q8_copy::requested(out, rows, cols)?;
            Some(Self { format: CopyFormat::Q8, buffer })
        })
    }

    /// Value of the kernel parameter `copy_format`.
    pub(super) fn code(copy: Option<&Self>) -> u32 {
        match copy.map(|copy| copy.format) {
            None => COPY_NONE,
            Some(CopyFormat::Q8) => COPY_Q8,
            Some(CopyFormat::F16) => COPY_F16,
        }
    }

    /// Marks the copy of `out` as current, with shape `[rows, cols]`. Call it after the dispatch.
    pub(super) fn mark_written(&self, out: &GpuBuffer, rows: usize, cols: usize) {
        out.mark_copy(self.format, [rows, cols]);
    }
}

/// Buffer of `bytes` for a copy of `x` with `[rows, cols] = shape`, and whether it is current. Packed rows use the cached
/// copy of their buffer, other rows a scratch buffer.
///
/// # Errors
/// If the device is out of memory.
pub(super) fn destination(
    gpu: &Gpu,
    format: CopyFormat,
    x: GpuRows<'_>,
    (bytes, shape): (usize, [usize; 2]),
) -> Result<(GpuBuffer, bool)> {
    if x.is_packed() {
        return x.buffer.copy_for(gpu, format, bytes, shape);
    }
    let name = match format {
        CopyFormat::Q8 => "q8_copy",
        CopyFormat::F16 => "f16_copy",
    };
    Ok((gpu.scratch(name, bytes)?, false))
}

/// Appends `write_copy4`, with which kernels write the copy.
pub(super) fn with_write_copy4(source: Source, variant: Variant) -> Source {
    q8_copy::with_quantize4(source, variant)
        .file(f16_copy::PACK)
        .constant("COPY_Q8", COPY_Q8)
        .constant("COPY_F16", COPY_F16)
        .file(include_str!("write_copy4.wgsl"))
}
