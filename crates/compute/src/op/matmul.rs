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

/// Epilogue of a product: `y = act(sum + bias)`, or `y += act(sum + bias)` with `accumulate`. `W` holds values of a device.
#[derive(Debug, Clone, Copy, Default)]
pub struct Epilogue<W> {
    /// `[N]`, added to every row.
    pub bias: Option<W>,
    /// Applied after the bias.
    pub activation: Activation,
    /// Whether to add to the output (residual connection) instead of overwriting it.
    pub accumulate: bool,
}

impl MatmulArgs {
    /// Bias and activation, with the values of a device.
    #[must_use]
    pub fn epilogue<'a, V>(
        &'a self,
        accumulate: bool,
        values: impl Fn(&'a Weight) -> V,
    ) -> Epilogue<V> {
        let bias = self.bias.as_ref().map(values);
        Epilogue { bias, activation: self.activation, accumulate }
    }
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
