//! Products of few rows with weights in a file's block order, for formats without panels.

use stonechat_compute::DType;
use stonechat_quant::QuantMatrix;
pub(super) use stonechat_quant::{gemv_blocks as multiply, kernel_name as name};

/// Whether a format has such a kernel.
pub(super) fn has(dtype: DType) -> bool {
    QuantMatrix::has_kernel(dtype)
}
