//! RMS norm and layer norm of rows.

use super::Weight;

/// Arguments of [`Op::LayerNorm`](super::Op::LayerNorm) and [`Op::RmsNorm`](super::Op::RmsNorm). `W` holds values: a
/// [`Weight`] in a program, or the memory of a device.
#[derive(Debug, Clone, Copy)]
pub struct NormArgs<W = Weight> {
    /// `[D]`.
    pub weight: W,
    /// `[D]`; layer norms only.
    pub bias: Option<W>,
    /// Added to the variance or the mean square.
    pub eps: f32,
}

impl<W> NormArgs<W> {
    /// Replaces the weights by those of a device.
    #[must_use]
    pub fn map<'a, V>(&'a self, values: impl Fn(&'a W) -> V) -> NormArgs<V> {
        let Self { weight, bias, eps } = self;
        NormArgs { weight: values(weight), bias: bias.as_ref().map(&values), eps: *eps }
    }
}

/// RMS norm that a product applies to its operand of one row. `W` holds values of a device.
#[derive(Debug, Clone, Copy)]
pub struct InputNorm<W> {
    /// `[K]`.
    pub weight: W,
    /// Added to the mean square.
    pub eps: f32,
    /// Result `[K]` in f32, for later readers.
    pub out: W,
}
