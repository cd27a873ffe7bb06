//! Kernels of the CPU that fusion depends on.

use stonechat_compute::op::{TensorType, WeightLayout};

use super::row_kernels;
use super::weights::MAX_INT_DOT_ROWS;
use crate::fuse::CapabilityKind::{Read, Run, Write};
use crate::fuse::{Capabilities, Capability, Limit, MoeKernels, OpKind};
use crate::program::RowClass;

/// Row counts whose products read weights in the layout that they have in memory.
const FEW_ROWS: RowClass = RowClass { min: 1, max: MAX_INT_DOT_ROWS };
/// Row counts whose products unpack each weight once for all rows.
const MANY_ROWS: RowClass = RowClass { min: MAX_INT_DOT_ROWS + 1, max: usize::MAX };
/// Maximum matmuls of a group.
pub(super) const MAX_GROUP: usize = 3;

/// Kernels that fusion depends on. Rows of a convolution overlap in memory, so that it needs no copy.
pub(super) fn capabilities() -> Capabilities {
    let (any, operand) = (RowClass::ALL, TensorType::Operand);
    let packed = Limit::Layout(WeightLayout::Packed);
    let rows = vec![Limit::Layout(WeightLayout::Rows), Limit::types(row_kernels::has)];
    // Panels in whole q8 blocks of rows.
    let panels = vec![Limit::Results(&[TensorType::Operand]), packed.clone(), Limit::NMultiple(32)];
    Capabilities {
        row_classes: &[FEW_ROWS, MANY_ROWS],
        moe: MoeKernels::Mlp,
        residuals: true,
        table: vec![
            Capability::new(&[OpKind::Matmul], Read(operand), any, [packed]),
            Capability::new(&[OpKind::Matmul], Read(operand), FEW_ROWS, rows),
            Capability::new(&[OpKind::MatmulGroup], Run, any, [Limit::Matrices(MAX_GROUP)]),
            // In decode, which is bound by memory bandwidth, a thread reads a long run of one matrix faster than short runs of
            // two in turn.
            Capability::new(&[OpKind::GatedProduct], Run, MANY_ROWS, panels),
            // Rows are rounded while they are in the cache.
            Capability::new(&[OpKind::LayerNorm, OpKind::RmsNorm], Write(operand), any, []),
        ],
        ..Capabilities::none()
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_table_equals_its_snapshot() {
        crate::testing::check_snapshot("capabilities/cpu.txt", &super::capabilities().to_string());
    }
}
