//! Layer norm and RMS norm.

use crate::{Backend, View};

/// Layer norm over the last axis: `(x - mean) / sqrt(var + eps) * weight + bias` (Ba et al. 2016).
#[derive(Debug)]
pub struct LayerNorm<B: Backend> {
    /// `[D]`.
    pub weight: B::Buffer,
    /// `[D]`.
    pub bias: Option<B::Buffer>,
    /// Added to the variance.
    pub eps: f32,
}

impl<B: Backend> LayerNorm<B> {
    /// `out[T, D] = norm(x[T, D])`.
    pub fn forward(&self, backend: &B, out: &mut B::Buffer, x: View<'_, B>) {
        backend.layer_norm(out, x, &self.weight, self.bias.as_ref(), self.eps);
    }
}

/// RMS norm over the last axis: `x / sqrt(mean(x²) + eps) * weight` (Zhang & Sennrich 2019, eq. 4).
#[derive(Debug)]
pub struct RmsNorm<B: Backend> {
    /// `[D]`.
    pub weight: B::Buffer,
    /// Added to the mean square.
    pub eps: f32,
}

impl<B: Backend> RmsNorm<B> {
    /// `out[T, D] = norm(x[T, D])`.
    pub fn forward(&self, backend: &B, out: &mut B::Buffer, x: View<'_, B>) {
        backend.rms_norm(out, x, &self.weight, self.eps, false);
    }

    /// `out[T, D] += norm(x[T, D])`: a post-norm fused with the residual add (Gemma 2).
    pub fn accumulate(&self, backend: &B, out: &mut B::Buffer, x: View<'_, B>) {
        backend.rms_norm(out, x, &self.weight, self.eps, true);
    }
}

/// The norm of an architecture.
#[derive(Debug)]
pub enum Norm<B: Backend> {
    /// Layer norm.
    Layer(LayerNorm<B>),
    /// RMS norm.
    Rms(RmsNorm<B>),
}

impl<B: Backend> Norm<B> {
    /// `out[T, D] = norm(x[T, D])`.
    pub fn forward(&self, backend: &B, out: &mut B::Buffer, x: View<'_, B>) {
        match self {
            Self::Layer(norm) => norm.forward(backend, out, x),
            Self::Rms(norm) => norm.forward(backend, out, x),
        }
    }
}
