//! Operands of matmuls: activations in the form that the kernels of a weight format read, written by the kernel that computes
//! them or converted from f32.
//!
//! | format | read by | layout |
//! |---|---|---|
//! | f32 | float weights, and all without cooperative matrices above 8 rows | rows, see [`GpuRows`] |
//! | q8 | quantized weights, up to 8 rows | see [`super::q8`] |
//! | f16 | all but f32 weights, more rows, by cooperative matrices | packed rows, see [`super::f16`] |

use super::kernel::{GpuRows, KernelSpec, OPERAND_F16, OPERAND_Q8, OperandWriter};
use super::{f16, q8};
use crate::kernel_params;
use crate::wgpu::Access::{Read, Write};
use crate::wgpu::{Bind, GpuBuffer, Recorder, WORKGROUP};
use crate::{check_at_most, check_multiple};

/// Columns of an operand are padded with zeros to a multiple of this.
pub const COLUMNS: usize = 64;

/// Format of an operand other than f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperandFormat {
    /// int8 in groups of 32.
    Q8,
    /// f16.
    F16,
}

impl OperandFormat {
    /// Bytes of `[rows, cols]`, padded.
    #[must_use]
    pub fn bytes(self, rows: usize, cols: usize) -> usize {
        let padded = cols.next_multiple_of(COLUMNS);
        match self {
            Self::Q8 => 16 * rows * q8::row_vectors(padded),
            Self::F16 => 2 * rows * padded,
        }
    }

    /// Code in kernel parameters, equal to the `OPERAND_*` constants.
    fn code(self) -> u32 {
        match self {
            Self::Q8 => OPERAND_Q8,
            Self::F16 => OPERAND_F16,
        }
    }
}

/// Values of kernel parameters `operand`.
const OPERAND_NONE: u32 = 0;

/// Activations that a matmul reads.
#[derive(Debug, Clone, Copy)]
pub enum GpuOperand<'a> {
    /// f32.
    Values(GpuRows<'a>),
    /// Packed rows of another format.
    Converted(OperandFormat, &'a GpuBuffer),
}

/// Memory of a result.
#[derive(Debug, Clone, Copy)]
pub struct GpuOutput<'a> {
    /// f32, packed.
    pub values: Option<&'a GpuBuffer>,
    /// The result as an operand of matmuls; its columns are a multiple of [`COLUMNS`].
    pub operand: Option<(OperandFormat, &'a GpuBuffer)>,
}

impl<'a> From<&'a GpuBuffer> for GpuOutput<'a> {
    fn from(values: &'a GpuBuffer) -> Self {
        Self { values: Some(values), operand: None }
    }
}

impl<'a> GpuOutput<'a> {
    /// Value of the kernel parameter `operand`.
    pub(super) fn code(&self) -> u32 {
        self.operand.map_or(OPERAND_NONE, |(format, _)| format.code())
    }

    /// Bindings of the f32 values and of the operand.
    pub(super) fn binds(&self) -> [Bind<'a>; 2] {
        [self.values.into(), self.operand.map(|(_, buffer)| buffer).into()]
    }

    /// Asserts that the result has room for `[rows, cols]`.
    #[track_caller]
    pub(super) fn check(&self, what: &str, rows: usize, cols: usize) {
        self.values.inspect(|values| super::check_len(what, values, rows * cols));
        if let Some((format, buffer)) = self.operand {
            check_multiple!(cols, COLUMNS, "{what}: columns");
            check_at_most!(
                format.bytes(rows, cols),
                buffer.bytes(),
                "{what}: bytes of the operand"
            );
        }
    }
}

kernel_params! {
    pub(super) struct ConvertParams {
        rows: u32,
        cols: u32,
        offset: u32,
        stride: u32,
        /// Columns of the operand; those from `cols` on are zero.
        padded: u32,
    }
}

/// Each invocation converts four values of a row.
pub(super) const Q8_SPEC: KernelSpec = KernelSpec {
    workgroup: q8::WORKGROUP,
    operand_writer: OperandWriter::Q8,
    ..KernelSpec::new::<ConvertParams>(
        "convert_q8",
        &[Read, Write],
        &[include_str!("convert_q8.wgsl")],
    )
};

/// Conversion to f16; eight values per invocation.
pub(super) const F16_SPEC: KernelSpec = KernelSpec::new::<ConvertParams>(
    "convert_f16",
    &[Read, Write],
    &[f16::PACK, include_str!("convert_f16.wgsl")],
);

/// Converts `x` to `out`, `[rows, padded]` of `format`; columns beyond those of `x` are zero.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn convert(list: &mut Recorder, out: &GpuBuffer, format: OperandFormat, x: GpuRows<'_>) {
    let x = x.checked();
    check_at_most!(format.bytes(x.rows, x.cols), out.bytes(), "convert: bytes of the operand");
    let padded = x.cols.next_multiple_of(COLUMNS);
    let params = ConvertParams {
        rows: x.rows as u32,
        cols: x.cols as u32,
        offset: x.offset as u32,
        stride: x.stride as u32,
        padded: padded as u32,
    };
    let (spec, groups) = match format {
        OperandFormat::Q8 => (Q8_SPEC, x.rows * padded.div_ceil(4 * q8::WORKGROUP as usize)),
        OperandFormat::F16 => (F16_SPEC, (x.rows * padded / 8).div_ceil(WORKGROUP as usize)),
    };
    let kernel = spec.kernel(list.gpu());
    list.dispatch_linear(&kernel, &params, [x.buffer.into(), Bind::Buffer(out)], groups);
}
