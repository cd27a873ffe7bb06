//! Kernels that fusion depends on.

use stonechat_compute::DType;
use stonechat_compute::cuda::Gpu;
use stonechat_compute::cuda::ops::OPERAND_COLUMNS;
use stonechat_compute::op::{KvDType, TensorType};
use stonechat_quant::cuda::{CudaMatrix, MAX_GEMV_ROWS, MAX_GROUP, TYPE_PAIRS, max_row_cols};

use crate::fuse::CapabilityKind::{Norm, Read, Run, Write};
use crate::fuse::{Capabilities, Capability, Conv1dKernels, Limit, MoeKernels, OpKind};
use crate::program::RowClass;

const ONE_ROW: RowClass = RowClass { min: 1, max: 1 };
/// Rows of GEMV.
const FEW_ROWS: RowClass = RowClass { min: 1, max: MAX_GEMV_ROWS };
const MANY_ROWS: RowClass = RowClass { min: MAX_GEMV_ROWS + 1, max: usize::MAX };
const CLASSES: &[RowClass] = &[ONE_ROW, RowClass { min: 2, max: MAX_GEMV_ROWS }, MANY_ROWS];

/// Products that read f16 operands.
const PRODUCTS: &[OpKind] =
    &[OpKind::Matmul, OpKind::MatmulGroup, OpKind::GatedProduct, OpKind::ExpertMatmul];
/// Ops without weights that write f16.
const WRITERS: &[OpKind] = &[OpKind::LayerNorm, OpKind::RmsNorm, OpKind::Gated, OpKind::Attention];

/// Types in files whose types on the device fulfill a condition.
fn types(is_stored: impl Fn(DType) -> bool) -> Limit {
    Limit::types(|dtype| is_stored(CudaMatrix::device_dtype(dtype)))
}

/// Kernels that fusion depends on.
pub(super) fn capabilities(gpu: &Gpu) -> Capabilities {
    let (any, f16) = (RowClass::ALL, TensorType::F16);
    let panels = types(|dtype| dtype != DType::F32);
    // Launches of several matrices: panels of one type.
    let alike = [
        vec![types(|dtype| dtype == DType::F16)],
        vec![types(|dtype| !matches!(dtype, DType::F32 | DType::F16)), Limit::OtherTypes(0)],
    ];
    let whole = Limit::ColMultiple(OPERAND_COLUMNS);
    let heads = [Limit::KvTypes(&[KvDType::F16, KvDType::Q8_0]), Limit::HeadMultiple(4)];
    let mut table = vec![
        Capability::new(PRODUCTS, Read(f16), any, [panels.clone()]),
        Capability::new(&[OpKind::RopeKv], Run, any, []),
        Capability::new(&[OpKind::RopeAttention], Run, ONE_ROW, heads),
        // A norm of few rows is that of their products.
        Capability::new(&[OpKind::AllReduceNorm], Run, MANY_ROWS, [Limit::NoBias]),
        // The kernel pads the columns.
        Capability::new(&[OpKind::Im2col], Write(f16), any, []),
        Capability::new(WRITERS, Write(f16), any, [whole.clone()]),
        Capability::new(&[OpKind::Matmul], Write(f16), any, [panels.clone(), whole]),
    ];
    for types in alike {
        let group = [types.clone(), vec![Limit::Matrices(MAX_GROUP)]].concat();
        table.push(Capability::new(&[OpKind::MatmulGroup], Run, any, group));
        for result in [
            vec![Limit::Results(&[TensorType::F32])],
            vec![Limit::Results(&[TensorType::F16]), Limit::NMultiple(OPERAND_COLUMNS)],
        ] {
            let limits = [types.clone(), vec![Limit::NoBias], result].concat();
            table.push(Capability::new(&[OpKind::GatedProduct], Run, FEW_ROWS, limits));
        }
    }
    let max_row = max_row_cols(gpu);
    for (_, first, second) in TYPE_PAIRS {
        let pair = [Limit::Types(vec![first, second]), Limit::Matrices(MAX_GROUP)];
        if let Some(max) = max_row {
            let limits = [&pair[..], &[Limit::MaxK(max)]].concat();
            table.push(Capability::new(&[OpKind::MatmulGroup], Run, ONE_ROW, limits));
        }
        if gpu.device().has_warpgroups() {
            table.push(Capability::new(&[OpKind::MatmulGroup], Run, MANY_ROWS, pair));
        }
    }
    if let Some(max) = max_row {
        let limits = [panels, Limit::KMultiple(4), Limit::MaxK(max)];
        table.push(Capability::new(OpKind::PRODUCTS, Norm, ONE_ROW, limits));
    }
    Capabilities {
        row_classes: CLASSES,
        moe: MoeKernels::Products { sorted: true },
        conv1d: Conv1dKernels::Im2col { col_multiple: 1 },
        residuals: true,
        table,
    }
}

#[cfg(test)]
mod tests {
    use stonechat_compute::cuda::{Gpu, Limits};

    use super::capabilities;
    use crate::testing::check_snapshot;

    #[test]
    fn tables_of_all_devices_equal_their_snapshots() {
        for limits in Limits::ALL {
            let (major, minor) = limits.capability;
            let table = capabilities(&Gpu::planned(limits)).to_string();
            check_snapshot(&format!("capabilities/cuda-{major}.{minor}.txt"), &table);
        }
    }
}
