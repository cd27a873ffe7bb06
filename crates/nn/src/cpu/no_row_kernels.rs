//! A build without kernels for block formats without panels: such weights are widened for each product.

use stonechat_compute::cpu::{Epilogue, MatMut};
use stonechat_compute::{Cpu, DType, Isa};
use stonechat_quant::{ActivationBuffer, QuantMatrix};

pub(super) fn has(_: DType) -> bool {
    false
}

pub(super) fn multiply(
    _: &Cpu,
    _: MatMut<'_>,
    _: &ActivationBuffer,
    w: QuantMatrix<'_>,
    _: Epilogue<'_>,
) {
    panic!("matmul: expected a format with a kernel, got {}", w.dtype());
}

pub(super) fn name(_: Isa, dtype: DType) -> String {
    panic!("matmul: expected a format with a kernel, got {dtype}");
}
