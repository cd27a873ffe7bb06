//! Matrix products with a bias.

use crate::backend::Activation;
use crate::{Backend, Epilogue, MatmulOp, View};

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
        self.forward_into(backend, out, x, false);
    }

    /// `out[T, N] = act(x·Wᵀ + b)`, read by the matmul with `consumer` alone.
    pub fn forward_activated(
        &self,
        backend: &B,
        out: &mut B::Buffer,
        x: View<'_, B>,
        (activation, consumer): (Activation, &Self),
    ) {
        let op = MatmulOp { consumer: Some(&consumer.weight), ..self.op(out, activation, false) };
        backend.matmul(x, [op]);
    }

    /// `out[T, N] += x·Wᵀ + b`: adds to the residual stream.
    pub fn accumulate(&self, backend: &B, out: &mut B::Buffer, x: View<'_, B>) {
        self.forward_into(backend, out, x, true);
    }

    /// [`accumulate`](Self::accumulate) or [`forward`](Self::forward).
    pub fn forward_into(&self, backend: &B, out: &mut B::Buffer, x: View<'_, B>, accumulate: bool) {
        backend.matmul(x, [self.op(out, Activation::None, accumulate)]);
    }

    /// `out[T, N] = x·Wᵀ + b` as an op of [`Backend::matmul`], which takes several that share `x`.
    pub fn matmul_op<'a>(&'a self, out: &'a mut B::Buffer) -> MatmulOp<'a, B> {
        self.op(out, Activation::None, false)
    }

    fn op<'a>(
        &'a self,
        out: &'a mut B::Buffer,
        activation: Activation,
        accumulate: bool,
    ) -> MatmulOp<'a, B> {
        let epilogue = Epilogue { bias: self.bias.as_ref(), activation, accumulate };
        MatmulOp { out, w: &self.weight, epilogue, consumer: None }
    }
}
