//! Matrix products with a bias.

use crate::backend::Activation;
use crate::{Backend, Epilogue, Product, View};

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
        self.end(backend, out, x, false);
    }

    /// `out[T, N] = act(x·Wᵀ + b)`, which nothing but the product with `reader` reads.
    pub fn forward_activated(
        &self,
        backend: &B,
        out: &mut B::Buffer,
        x: View<'_, B>,
        (activation, reader): (Activation, &Self),
    ) {
        let product = self.ending(out, activation, false);
        backend.matmul(x, [Product { reader: Some(&reader.weight), ..product }]);
    }

    /// `out[T, N] += x·Wᵀ + b`: the end of a residual branch.
    pub fn accumulate(&self, backend: &B, out: &mut B::Buffer, x: View<'_, B>) {
        self.end(backend, out, x, true);
    }

    /// [`accumulate`](Self::accumulate) or [`forward`](Self::forward).
    pub fn end(&self, backend: &B, out: &mut B::Buffer, x: View<'_, B>, accumulate: bool) {
        backend.matmul(x, [self.ending(out, Activation::None, accumulate)]);
    }

    /// `out[T, N] = x·Wᵀ + b`, to be computed with other products of `x`.
    pub fn product<'a>(&'a self, out: &'a mut B::Buffer) -> Product<'a, B> {
        self.ending(out, Activation::None, false)
    }

    fn ending<'a>(
        &'a self,
        out: &'a mut B::Buffer,
        activation: Activation,
        accumulate: bool,
    ) -> Product<'a, B> {
        let epilogue = Epilogue { bias: self.bias.as_ref(), activation, accumulate };
        Product { out, w: &self.weight, epilogue, reader: None }
    }
}
