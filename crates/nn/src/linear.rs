//! Linear layers.

use crate::backend::Activation;
use crate::{Backend, Epilogue, MatmulOp, View};

/// Linear layer `y = act(x·Wᵀ + b)`, generic over the storage of `W`.
#[derive(Debug)]
pub struct Linear<B: Backend> {
    /// `[N, K]`.
    pub weight: B::Matrix,
    /// `[N]`.
    pub bias: Option<B::Buffer>,
}

impl<B: Backend> Linear<B> {
    /// `out = x·Wᵀ + b`, `x` = `[T, K]`, `out` packed `[T, N]`.
    ///
    /// # Panics
    /// If the shapes do not fit, as the other methods do.
    pub fn forward(&self, backend: &B, out: &mut B::Buffer, x: View<'_, B>) {
        self.forward_into(backend, out, x, false);
    }

    /// `out = act(x·Wᵀ + b)`, with `consumer` as the sole reader of `out` ([`MatmulOp::consumer`]).
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

    /// `out += x·Wᵀ + b`: adds to the residual stream.
    pub fn accumulate(&self, backend: &B, out: &mut B::Buffer, x: View<'_, B>) {
        self.forward_into(backend, out, x, true);
    }

    /// [`accumulate`](Self::accumulate) if `accumulate` is set, else [`forward`](Self::forward).
    pub fn forward_into(&self, backend: &B, out: &mut B::Buffer, x: View<'_, B>, accumulate: bool) {
        backend.matmul(x, [self.op(out, Activation::None, accumulate)]);
    }

    /// `out = x·Wᵀ + b` as an op for [`Backend::matmul`], which takes several of the same `x`.
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
