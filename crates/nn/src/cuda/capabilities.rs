//! Kernels, for fusion.

use stonechat_compute::cuda::Gpu;
use stonechat_compute::cuda::ops::OPERAND_COLUMNS;
use stonechat_compute::op::{MatmulArgs, Op, TensorType};
use stonechat_quant::cuda::{CudaMatrix, MAX_GEMV_ROWS, can_group, can_pair, fuses_norm};

use super::weights::matrix;
use crate::KvDType;
use crate::fuse::{Capabilities, Conv1dKernels, MoeKernels};
use crate::program::RowClass;

const ONE_ROW: RowClass = RowClass { min: 1, max: 1 };
const CLASSES: &[RowClass] = &[
    ONE_ROW,
    RowClass { min: 2, max: MAX_GEMV_ROWS },
    RowClass { min: MAX_GEMV_ROWS + 1, max: usize::MAX },
];

/// Type in which an op reads its first operand.
pub(super) fn operand_type(op: &Op) -> TensorType {
    let all = match op {
        Op::Matmul(args) => vec![matrix(&args.weight)],
        Op::MatmulGroup(all) => matrices(all),
        Op::GatedProduct(args) => vec![matrix(&args.gate.weight)],
        Op::ExpertMatmul(args) => vec![matrix(&args.weight)],
        _ => return TensorType::F32,
    };
    let reads_operand = all.iter().all(|matrix| matrix.reads_operand());
    if reads_operand { TensorType::F16 } else { TensorType::F32 }
}

/// Kernels that fusion depends on.
pub(super) fn capabilities(gpu: &Gpu) -> Capabilities {
    let gpu = gpu.clone();
    Capabilities {
        row_classes: CLASSES,
        moe: MoeKernels::Products { sorted: true },
        conv1d: Conv1dKernels::Im2col { col_multiple: 1 },
        residuals: true,
        operand: Box::new(|op, _| operand_type(op)),
        accepts: {
            let gpu = gpu.clone();
            Box::new(move |op, class| accepts(&gpu, op, class))
        },
        fuses_norm: Box::new(move |op, class| {
            let weight = match op {
                Op::Matmul(args) => &args.weight,
                Op::MatmulGroup(all) => &all[0].weight,
                Op::GatedProduct(args) => &args.gate.weight,
                _ => return false,
            };
            let is_operand = operand_type(op) == TensorType::F16;
            class == ONE_ROW && is_operand && fuses_norm(&gpu, matrix(weight).k())
        }),
        writes: Box::new(|op, _, dtype, cols| {
            let is_writer = match op {
                // The kernel pads the columns.
                Op::Im2col(_) => return dtype == TensorType::F16,
                Op::LayerNorm(_) | Op::RmsNorm(_) | Op::Gated(_) | Op::Attention(_) => true,
                Op::Matmul(args) => matrix(&args.weight).reads_operand(),
                _ => false,
            };
            is_writer && dtype == TensorType::F16 && cols.is_multiple_of(OPERAND_COLUMNS)
        }),
    }
}

fn matrices(all: &[MatmulArgs]) -> Vec<&CudaMatrix> {
    all.iter().map(|args| matrix(&args.weight)).collect()
}

fn accepts(gpu: &Gpu, op: &Op, class: RowClass) -> bool {
    match op {
        Op::RopeKv(_) => true,
        Op::RopeAttention(args) => {
            let is_whole = args.rope.q.head_dim.is_multiple_of(4);
            class == ONE_ROW && args.kv != KvDType::F32 && is_whole
        }
        Op::MatmulGroup(all) => can_group(gpu, &matrices(all), class.min..=class.max),
        // A norm of few rows is that of their products.
        Op::AllReduceNorm(args) => class.min > MAX_GEMV_ROWS && args.bias.is_none(),
        Op::GatedProduct(args) => {
            let factors = [&args.gate, &args.up];
            let [gate, up] = factors.map(|args| matrix(&args.weight));
            let is_whole =
                args.dtype == TensorType::F32 || gate.n().is_multiple_of(OPERAND_COLUMNS);
            class.max <= MAX_GEMV_ROWS
                && factors.into_iter().all(|args| args.bias.is_none())
                && can_pair(gate, up)
                && matches!(args.dtype, TensorType::F32 | TensorType::F16)
                && is_whole
        }
        _ => false,
    }
}
