//! Kernels of a GPU, for fusion.

use stonechat_compute::DType;
use stonechat_compute::op::{MatmulArgs, Op, TensorType};
use stonechat_compute::wgpu::Gpu;
use stonechat_compute::wgpu::ops::operand::{COLUMNS, OperandFormat};
use stonechat_compute::wgpu::ops::q8::GROUP_LEN;
use stonechat_quant::wgpu::{
    GpuMatrix, MAX_GEMV_ROWS, can_fuse_gate_up, can_group, fuses_norm, gate_up_fuses_norm,
    group_fuses_norm, operand_format, writes_operand,
};

use super::weights::matrix;
use crate::fuse::{Capabilities, Conv1dKernels, MoeKernels};
use crate::program::RowClass;

const ONE_ROW: RowClass = RowClass { min: 1, max: 1 };
const CLASSES: &[RowClass] = &[
    ONE_ROW,
    RowClass { min: 2, max: 4 },
    RowClass { min: 5, max: MAX_GEMV_ROWS },
    RowClass { min: MAX_GEMV_ROWS + 1, max: usize::MAX },
];

pub(super) fn tensor_type(format: Option<OperandFormat>) -> TensorType {
    match format {
        None => TensorType::F32,
        Some(OperandFormat::Q8) => TensorType::Q8,
        Some(OperandFormat::F16) => TensorType::F16,
    }
}

/// Format of operands other than f32.
pub(super) fn operand_of(dtype: TensorType) -> Option<OperandFormat> {
    match dtype {
        TensorType::Q8 => Some(OperandFormat::Q8),
        TensorType::F16 => Some(OperandFormat::F16),
        TensorType::F32 | TensorType::U32 | TensorType::Operand => None,
    }
}

fn stored(args: &MatmulArgs) -> DType {
    matrix(&args.weight).dtype()
}

/// Type in which an op reads its first operand.
pub(super) fn operand_type(gpu: &Gpu, op: &Op, class: RowClass) -> TensorType {
    match op {
        Op::Matmul(args) => tensor_type(operand_format(gpu, stored(args), class.max)),
        Op::MatmulGroup(all) => tensor_type(operand_format(gpu, stored(&all[0]), class.max)),
        Op::GatedProduct(args) => tensor_type(operand_format(gpu, stored(&args.gate), class.max)),
        // Choices have a row each.
        Op::ExpertMatmul(args) => tensor_type(operand_format(gpu, matrix(&args.weight).dtype(), 1)),
        _ => TensorType::F32,
    }
}

/// Kernels that fusion depends on.
pub(super) fn capabilities(gpu: &Gpu) -> Capabilities {
    let gpus = [(); 4].map(|()| gpu.clone());
    let [operand, accepts, norms, writes] = gpus;
    Capabilities {
        row_classes: CLASSES,
        moe: MoeKernels::Products { sorted: false },
        conv1d: Conv1dKernels::Im2col { col_multiple: COLUMNS },
        residuals: true,
        operand: Box::new(move |op, class| operand_type(&operand, op, class)),
        accepts: Box::new(move |op, class| accepts_op(&accepts, op, class)),
        fuses_norm: Box::new(move |op, class| {
            class == ONE_ROW
                && match op {
                    Op::Matmul(args) => fuses_norm(&norms, matrix(&args.weight)),
                    Op::MatmulGroup(all) => group_fuses_norm(&norms, &matrices(all)),
                    Op::GatedProduct(args) => gate_up_fuses_norm(&norms, matrix(&args.gate.weight)),
                    _ => false,
                }
        }),
        writes: Box::new(move |op, class, dtype, cols| {
            let Some(format) = operand_of(dtype) else { return false };
            let is_whole = cols.is_multiple_of(COLUMNS);
            is_whole
                && match op {
                    Op::LayerNorm(_) | Op::RmsNorm(_) | Op::Gated(_) => true,
                    // A q8 group must not span two heads.
                    Op::Attention(args) => {
                        let head_dim = cols / args.n_heads;
                        format == OperandFormat::F16 || head_dim.is_multiple_of(GROUP_LEN)
                    }
                    Op::Matmul(args) => {
                        writes_operand(&writes, matrix(&args.weight), class.max, format)
                    }
                    _ => false,
                }
        }),
    }
}

fn matrices(all: &[MatmulArgs]) -> Vec<&GpuMatrix> {
    all.iter().map(|args| matrix(&args.weight)).collect()
}

fn accepts_op(gpu: &Gpu, op: &Op, class: RowClass) -> bool {
    if class.max > MAX_GEMV_ROWS {
        return false;
    }
    match op {
        Op::RopeKv(_) => true,
        Op::MatmulGroup(all) => can_group(gpu, &matrices(all), class.max),
        Op::GatedProduct(args) => {
            let factors = [&args.gate, &args.up];
            let [gate, up] = factors.map(|args| matrix(&args.weight));
            factors.into_iter().all(|args| args.bias.is_none())
                && can_fuse_gate_up(gpu, gate, up, class.max)
                && matches!(args.dtype, TensorType::F32 | TensorType::Q8)
        }
        _ => false,
    }
}
