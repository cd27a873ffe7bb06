//! Matmuls, and the ops that are made of them.

use super::{Activation, GatedActivation, TensorType, Weight};

/// Arguments of [`Op::Matmul`](super::Op::Matmul).
#[derive(Debug, Clone)]
pub struct MatmulArgs {
    /// `[N, K]`.
    pub weight: Weight,
    /// `[N]`, added to every row.
    pub bias: Option<Weight>,
    /// Applied after the bias.
    pub activation: Activation,
}

/// Arguments of [`Op::Conv1d`](super::Op::Conv1d).
#[derive(Debug, Clone)]
pub struct ConvArgs {
    /// `[C_out, 3 * C_in]`, tap-major; bias `[C_out]`; activation.
    pub matmul: MatmulArgs,
    /// Input rows per output row.
    pub stride: usize,
}

/// Arguments of [`Op::GatedProduct`](super::Op::GatedProduct): matmuls without activation.
#[derive(Debug, Clone)]
pub struct GatedProductArgs {
    /// `[F, D]`.
    pub gate: MatmulArgs,
    /// `[F, D]`.
    pub up: MatmulArgs,
    /// Combines gate and up.
    pub activation: GatedActivation,
    /// Type of the result.
    pub dtype: TensorType,
}

/// Arguments of [`Op::Im2col`](super::Op::Im2col).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Im2colArgs {
    /// Input rows per output row.
    pub stride: usize,
    /// Columns of a row, at least `3 * C_in`; those after the taps are zeros.
    pub cols: usize,
}
