//! Kernels of a GPU that fusion depends on.

use stonechat_compute::DType;
use stonechat_compute::op::{TensorType, WeightLayout};
use stonechat_compute::wgpu::ops::operand::{COLUMNS, OperandFormat};
use stonechat_compute::wgpu::ops::q8::GROUP_LEN;
use stonechat_compute::wgpu::{Gpu, Variant};
use stonechat_quant::wgpu::{
    GATE_UP_BUFFERS, GATE_UP_ROWS, GEMV_BUFFERS, GROUP_BUFFERS, GpuMatrix, MAX_GEMV_ROWS,
    MAX_GROUP, NORM_BUFFERS, NormKernel, Q8_OUTPUT_MAX_ROWS,
};

use crate::fuse::CapabilityKind::{Norm, Read, Run, Write};
use crate::fuse::{Capabilities, Capability, Conv1dKernels, Limit, MoeKernels, OpKind};
use crate::program::RowClass;

const ONE_ROW: RowClass = RowClass { min: 1, max: 1 };
/// Rows of GEMV.
const FEW_ROWS: RowClass = RowClass { min: 1, max: MAX_GEMV_ROWS };
const MANY_ROWS: RowClass = RowClass { min: MAX_GEMV_ROWS + 1, max: usize::MAX };
const CLASSES: &[RowClass] = &[
    ONE_ROW,
    RowClass { min: 2, max: Q8_OUTPUT_MAX_ROWS },
    RowClass { min: Q8_OUTPUT_MAX_ROWS + 1, max: MAX_GEMV_ROWS },
    MANY_ROWS,
];

/// Format of operands other than f32.
pub(super) fn operand_of(dtype: TensorType) -> Option<OperandFormat> {
    match dtype {
        TensorType::Q8 => Some(OperandFormat::Q8),
        TensorType::F16 => Some(OperandFormat::F16),
        TensorType::F32 | TensorType::U32 | TensorType::Operand => None,
    }
}

/// Properties of a GPU that its kernels depend on.
#[derive(Debug, Clone, Copy)]
struct Properties {
    variant: Variant,
    has_matrices: bool,
    /// Maximum storage buffers of a kernel.
    max_buffers: usize,
}

/// Types in files whose types on the device fulfill a condition.
fn types(is_stored: impl Fn(DType) -> bool) -> Limit {
    Limit::types(|dtype| is_stored(GpuMatrix::device_dtype(dtype)))
}

/// Kernels that fusion depends on.
pub(super) fn capabilities(gpu: &Gpu) -> Capabilities {
    table(Properties {
        variant: gpu.variant(),
        has_matrices: gpu.matrices().is_some(),
        max_buffers: gpu.max_buffers(),
    })
}

fn table(gpu: Properties) -> Capabilities {
    let (any, q8, f16) = (RowClass::ALL, TensorType::Q8, TensorType::F16);
    let quantized = types(GpuMatrix::is_quantized);
    // A matrix in one buffer.
    let whole = Limit::Layout(WeightLayout::Packed);
    let cols = Limit::ColMultiple(COLUMNS);
    let writers = &[OpKind::LayerNorm, OpKind::RmsNorm, OpKind::Gated];
    let q8_rows = RowClass { min: 1, max: Q8_OUTPUT_MAX_ROWS };
    // A q8 group must not span two heads.
    let heads = [cols.clone(), Limit::HeadMultiple(GROUP_LEN)];
    let mut table = vec![
        Capability::new(OpKind::PRODUCTS, Read(q8), FEW_ROWS, [quantized.clone()]),
        // Routes have a row each.
        Capability::new(&[OpKind::ExpertMatmul], Read(q8), any, [quantized.clone()]),
        Capability::new(&[OpKind::RopeKv], Run, FEW_ROWS, []),
        Capability::new(writers, Write(q8), any, [cols.clone()]),
        Capability::new(writers, Write(f16), any, [cols.clone()]),
        Capability::new(&[OpKind::Attention], Write(q8), any, heads),
        Capability::new(&[OpKind::Attention], Write(f16), any, [cols.clone()]),
        Capability::new(&[OpKind::Matmul], Write(q8), q8_rows, [whole.clone(), cols.clone()]),
    ];
    if gpu.has_matrices {
        let halves = types(|dtype| dtype != DType::F32);
        table.push(Capability::new(OpKind::PRODUCTS, Read(f16), MANY_ROWS, [halves.clone()]));
        // Vectors of four outputs do not span slices.
        let limits = [halves, Limit::SliceMultiple(4), cols];
        table.push(Capability::new(&[OpKind::Matmul], Write(f16), MANY_ROWS, limits));
    }
    if gpu.max_buffers >= GROUP_BUFFERS {
        let float = |stored| vec![types(|dtype| dtype == stored)];
        let [f32, f16, bf16] = [DType::F32, DType::F16, DType::BF16].map(float);
        // Quantized formats share the q8 operand; a kernel reads two of them.
        for types in [f32, f16, bf16, vec![quantized.clone(), Limit::OtherTypes(1)]] {
            let limits = [types, vec![Limit::Matrices(MAX_GROUP), whole.clone()]].concat();
            table.push(Capability::new(&[OpKind::MatmulGroup], Run, FEW_ROWS, limits));
        }
    }
    if gpu.max_buffers >= GATE_UP_BUFFERS {
        let mut limits = vec![quantized.clone(), Limit::OtherTypes(0), whole.clone()];
        limits.extend([Limit::NMultiple(GATE_UP_ROWS), Limit::NoBias]);
        limits.push(Limit::Results(&[TensorType::F32, TensorType::Q8]));
        table.push(Capability::new(&[OpKind::GatedProduct], Run, FEW_ROWS, limits));
    }
    let norms = [
        (&[OpKind::Matmul], NormKernel::Gemv, GEMV_BUFFERS),
        (&[OpKind::MatmulGroup], NormKernel::Group, GROUP_BUFFERS),
        (&[OpKind::GatedProduct], NormKernel::GateUp, GATE_UP_BUFFERS),
    ];
    for (ops, kernel, buffers) in norms {
        let has_kernel = gpu.variant == Variant::Subgroups;
        if !has_kernel || buffers + NORM_BUFFERS > gpu.max_buffers {
            continue;
        }
        for bound in kernel.bounds() {
            let max_k = Limit::MaxK(bound.max_k);
            let workgroups =
                Limit::Workgroups { rows: bound.workgroup_rows, max: bound.max_workgroups };
            let limits =
                [quantized.clone(), whole.clone(), Limit::KMultiple(COLUMNS), max_k, workgroups];
            table.push(Capability::new(ops, Norm, ONE_ROW, limits));
        }
    }
    Capabilities {
        row_classes: CLASSES,
        moe: MoeKernels::Products { sorted: false },
        conv1d: Conv1dKernels::Im2col { col_multiple: COLUMNS },
        residuals: true,
        table,
    }
}

#[cfg(test)]
mod tests {
    use stonechat_compute::wgpu::Variant;

    use super::{Properties, table};
    use crate::testing::check_snapshot;

    #[test]
    fn tables_equal_their_snapshots() {
        // Limits that every browser has; those of a desktop, with and without cooperative matrices.
        for (name, variant, has_matrices, max_buffers) in [
            ("default", Variant::Portable, false, 8),
            ("subgroups", Variant::Subgroups, false, 16),
            ("matrices", Variant::Subgroups, true, 16),
        ] {
            let table = table(Properties { variant, has_matrices, max_buffers }).to_string();
            check_snapshot(&format!("capabilities/wgpu-{name}.txt"), &table);
        }
    }
}
