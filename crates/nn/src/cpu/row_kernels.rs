//! Products of few rows with weights in a file's block order, for formats without panels.

use stonechat_compute::cpu::{Epilogue, MatMut};
use stonechat_compute::{Cpu, DType, Isa};
use stonechat_quant::{ActivationBuffer, QuantMatrix, gemv_blocks, kernel_name};

/// Whether a format has such a kernel.
pub(super) fn has(dtype: DType) -> bool {
    QuantMatrix::has_kernel(dtype)
}

/// `out = epilogue(x · wᵀ)`.
///
/// # Panics
/// If the format has no kernel, or shapes do not agree.
pub(super) fn multiply(
    cpu: &Cpu,
    out: MatMut<'_>,
    x: &ActivationBuffer,
    w: QuantMatrix<'_>,
    epilogue: Epilogue<'_>,
) {
    gemv_blocks(cpu, out, x, w, epilogue);
}

/// Name of a format's kernel.
pub(super) fn name(isa: Isa, dtype: DType) -> String {
    kernel_name(isa, dtype)
}
