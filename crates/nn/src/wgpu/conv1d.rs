//! Convolutions on a GPU.

use stonechat_compute::wgpu::Recorder;
use stonechat_compute::wgpu::ops::operand::{GpuOperand, GpuOutput, OperandFormat, convert};
use stonechat_compute::wgpu::ops::{GpuRows, copy};
use stonechat_quant::wgpu::{GpuEpilogue, GpuInput, GpuMatrix, matmul, operand_format};

/// Convolution as a matmul over copied windows.
pub(super) fn conv1d(
    list: &mut Recorder,
    out: GpuOutput<'_>,
    x: GpuRows<'_>,
    w: &GpuMatrix,
    (stride, epilogue): (usize, GpuEpilogue<'_>),
) {
    assert_eq!(w.k(), 3 * x.cols, "conv1d: columns of the weights");
    let (rows, width) = (x.rows.div_ceil(stride), w.padded_k());
    let windows = list.scratch("conv1d", 4 * rows * width);
    copy::im2col(list, &windows, width, stride, x);
    let format = operand_format(list.gpu(), w.dtype(), rows);
    let x = GpuOperand::Values(GpuRows::packed(&windows, rows, width));
    with_operand(list, "conv1d operand", (x, format), |list, x| {
        matmul(list, out, GpuInput { x, rows, norm: None }, w, epilogue);
    });
}

/// Records `f` with `x` as an operand of `format`: f32 values are converted to scratch memory.
pub(super) fn with_operand(
    list: &mut Recorder,
    scratch: &'static str,
    (x, format): (GpuOperand<'_>, Option<OperandFormat>),
    f: impl FnOnce(&mut Recorder, GpuOperand<'_>),
) {
    let (GpuOperand::Values(values), Some(format)) = (x, format) else { return f(list, x) };
    let operand = list.scratch(scratch, format.bytes(values.rows, values.cols));
    convert(list, &operand, format, values);
    f(list, GpuOperand::Converted(format, &operand));
}
