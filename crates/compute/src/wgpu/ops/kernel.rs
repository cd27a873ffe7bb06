//! Common parts of kernels: views of values, sources, activations, operands.

use std::sync::Arc;

use super::{f16, q8};
use crate::check_at_most;
use crate::wgpu::{
    Access, Gpu, GpuBuffer, Kernel, KernelParams, ParamLayout, Source, Variant, WORKGROUP,
};

pub(super) const OPERAND_Q8: u32 = 1;
pub(super) const OPERAND_F16: u32 = 2;

/// Strided view of `[rows, cols]` f32 values: row `r` starts at value `offset + r * stride`.
#[derive(Debug, Clone, Copy)]
pub struct GpuRows<'a> {
    /// The buffer.
    pub buffer: &'a GpuBuffer,
    /// Index of the first value.
    pub offset: usize,
    /// Number of rows.
    pub rows: usize,
    /// Values in a row.
    pub cols: usize,
    /// Values between the starts of two rows.
    pub stride: usize,
}

impl<'a> GpuRows<'a> {
    /// Packed `[rows, cols]` values at the start of `buffer`.
    #[must_use]
    pub fn packed(buffer: &'a GpuBuffer, rows: usize, cols: usize) -> Self {
        Self { buffer, offset: 0, rows, cols, stride: cols }
    }

    /// Asserts that the rows are inside the buffer.
    ///
    /// # Panics
    /// If a row is outside of the buffer.
    #[must_use]
    #[track_caller]
    pub fn checked(self) -> Self {
        let end = if self.rows == 0 {
            0
        } else {
            self.offset + (self.rows - 1) * self.stride + self.cols
        };
        check_at_most!(4 * end, self.buffer.bytes(), "bytes of the rows");
        self
    }
}

/// Asserts that `buffer` has room for `len` f32 values.
///
/// # Panics
/// If the buffer is smaller.
#[track_caller]
pub fn check_len(what: &str, buffer: &GpuBuffer, len: usize) {
    check_at_most!(4 * len, buffer.bytes(), "{what}: bytes of {len} values");
}

/// Begins a kernel: constant `WG` (invocations in a workgroup), parameters `p`, entry point and reductions. The kernel's files follow.
#[must_use]
pub fn kernel_source(
    name: String,
    params: ParamLayout,
    access: &'static [Access],
    variant: Variant,
    workgroup: u32,
) -> Source {
    let source = Source::new(name, params, access);
    let (source, entry) = match variant {
        Variant::Portable => (source, include_str!("entry.portable.wgsl")),
        Variant::Subgroups => (source.with_subgroups(), include_str!("entry.subgroups.wgsl")),
    };
    source.constant("WG", workgroup).file(&params.wgsl()).file(entry)
}

/// WGSL of `exp`, `tanh`, `erf` and of `activate`, for epilogues.
pub const ACTIVATIONS: &str = include_str!("activation.wgsl");

/// Kernel without compile-time constants.
#[derive(Debug, Clone, Copy)]
pub(super) struct KernelSpec {
    pub(super) name: &'static str,
    pub(super) params: ParamLayout,
    pub(super) access: &'static [Access],
    pub(super) workgroup: u32,
    pub(super) files: &'static [&'static str],
    pub(super) operand_writer: OperandWriter,
}

/// Function with which a kernel writes an operand, to the binding `out_operand`.
#[derive(Debug, Clone, Copy)]
pub(super) enum OperandWriter {
    None,
    /// `quantize4`: q8.
    Q8,
    /// `write_operand4`: the format of a parameter.
    Any,
}

impl KernelSpec {
    /// Kernel of workgroups of [`WORKGROUP`] invocations with parameters `P`, which writes no operand.
    pub(super) const fn new<P: KernelParams>(
        name: &'static str,
        access: &'static [Access],
        files: &'static [&'static str],
    ) -> Self {
        let (workgroup, operand_writer) = (WORKGROUP, OperandWriter::None);
        Self { name, params: P::LAYOUT, access, workgroup, files, operand_writer }
    }

    pub(super) fn source(&self, variant: Variant) -> Source {
        let name = format!("{}-{}", self.name, variant.name());
        let source = kernel_source(name, self.params, self.access, variant, self.workgroup);
        let source = match self.operand_writer {
            OperandWriter::None => source,
            OperandWriter::Q8 => q8::with_quantize4(source, variant),
            OperandWriter::Any => with_write_operand4(source, variant),
        };
        self.files.iter().fold(source, |source, file| source.file(file))
    }

    pub(super) fn kernel(&self, gpu: &Gpu) -> Arc<Kernel> {
        gpu.kernel((self.name, [0; 4]), || self.source(gpu.variant()))
    }
}

/// Appends `write_operand4`, with which kernels write an operand.
pub(super) fn with_write_operand4(source: Source, variant: Variant) -> Source {
    q8::with_quantize4(source, variant)
        .file(f16::PACK)
        .constant("OPERAND_Q8", OPERAND_Q8)
        .constant("OPERAND_F16", OPERAND_F16)
        .file(include_str!("write_operand4.wgsl"))
}
