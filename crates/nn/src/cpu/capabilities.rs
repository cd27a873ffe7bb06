//! Kernels of the CPU that fusion depends on.

use stonechat_compute::op::{MatmulArgs, Op, TensorType, WeightInfo, WeightLayout};
use stonechat_quant::QuantMatrix;

use super::weights::MAX_INT_DOT_ROWS;
use crate::fuse::{Capabilities, MoeKernels};
use crate::program::RowClass;

/// Rows that read weights as they are in memory.
const FEW_ROWS: RowClass = RowClass { min: 1, max: MAX_INT_DOT_ROWS };
/// Rows for which weights are unpacked once for all.
const MANY_ROWS: RowClass = RowClass { min: MAX_INT_DOT_ROWS + 1, max: usize::MAX };
/// Most matmuls of a group.
pub(super) const MAX_GROUP: usize = 3;

/// Kernels that fusion depends on.
pub(super) fn capabilities() -> Capabilities {
    Capabilities {
        row_classes: &[FEW_ROWS, MANY_ROWS],
        // Rows of a convolution overlap in memory, so that no copy is needed.
        moe: MoeKernels::Mlp,
        residuals: true,
        operand: Box::new(|op, class| match op {
            Op::Matmul(args) if reads_quantized(args.weight.info(), class) => TensorType::Operand,
            _ => TensorType::F32,
        }),
        // In decode, which is bound by memory bandwidth, a thread reads a long run of one matrix faster than short runs of two
        // in turn.
        accepts: Box::new(|op, class| match op {
            Op::MatmulGroup(all) => all.len() <= MAX_GROUP,
            Op::GatedProduct(args) => {
                class == MANY_ROWS
                    && args.dtype == TensorType::Operand
                    && [&args.gate, &args.up].into_iter().all(is_gated_factor)
            }
            _ => false,
        }),
        // Rows are rounded while they are in the cache.
        writes: Box::new(|op, _, dtype, _| {
            dtype == TensorType::Operand && matches!(op, Op::LayerNorm(_) | Op::RmsNorm(_))
        }),
        ..Capabilities::none()
    }
}

/// Whether products with such weights read quantized activations.
fn reads_quantized(weight: WeightInfo, class: RowClass) -> bool {
    match weight.layout {
        WeightLayout::Packed => true,
        WeightLayout::Rows => QuantMatrix::has_kernel(weight.dtype) && class == FEW_ROWS,
    }
}

/// Whether `gated_packed` takes the weights: panels in whole q8 blocks of rows.
fn is_gated_factor(args: &MatmulArgs) -> bool {
    let WeightInfo { rows, layout, .. } = args.weight.info();
    layout == WeightLayout::Packed && rows.is_multiple_of(32)
}
