//! Normalization.

use crate::{Backend, View};

/// Layer norm over the last axis.
#[derive(Debug)]
pub struct LayerNorm<B: Backend> {
    /// `[D]`.
    pub weight: B::Buffer,
    /// `[D]`.
    pub bias: B::Buffer,
    /// Added to the variance.
    pub eps: f32,
}

impl<B: Backend> LayerNorm<B> {
    /// `out[T, D] = norm(x[T, D])`.
    pub fn forward(&self, backend: &B, out: &mut B::Buffer, x: View<'_, B>) {
        backend.layer_norm(out, x, &self.weight, &self.bias, self.eps);
    }
}
