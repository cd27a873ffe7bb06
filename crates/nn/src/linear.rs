//! Matrix products with a bias.

use crate::backend::Activation;
use crate::{Backend, Epilogue, View};

/// `y = act(x·Wᵀ + b)` with `W` of any weight type.
#[derive(Debug)]
pub struct Linear<B: Backend> {
    /// `[N, K]`.
    pub weight: B::Matrix,
    /// `[N]`.
    pub bias: Option<B::Buffer>,
}

impl<B: Backend> Linear<B> {
    /// `out[T, N] = x·Wᵀ + b`.
    pub fn forward(&self, backend: &B, out: &mut B::Buffer, x: View<'_, B>) {
        self.apply(backend, out, x, Activation::None, false);
    }

    /// `out[T, N] = gelu(x·Wᵀ + b)`.
    pub fn forward_gelu(&self, backend: &B, out: &mut B::Buffer, x: View<'_, B>) {
        self.apply(backend, out, x, Activation::Gelu, false);
    }

    /// `out[T, N] += x·Wᵀ + b`: the end of a residual branch.
    pub fn accumulate(&self, backend: &B, out: &mut B::Buffer, x: View<'_, B>) {
        self.apply(backend, out, x, Activation::None, true);
    }

    fn apply(
        &self,
        backend: &B,
        out: &mut B::Buffer,
        x: View<'_, B>,
        activation: Activation,
        accumulate: bool,
    ) {
        let epilogue = Epilogue { bias: self.bias.as_ref(), activation, accumulate };
        backend.matmul(out, x, &self.weight, epilogue);
    }
}
