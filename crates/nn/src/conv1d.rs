//! Convolution over time (Whisper's encoder stem).

use crate::backend::Activation;
use crate::{Backend, Epilogue, View};

/// Convolution over time with kernel size 3 and padding 1, see [`Backend::conv1d`].
#[derive(Debug)]
pub struct Conv1d<B: Backend> {
    /// `[C_out, 3 * C_in]`, tap-major: `w[o, tap * C_in + i]`.
    pub weight: B::Matrix,
    /// `[C_out]`.
    pub bias: B::Buffer,
    /// Input rows per output row.
    pub stride: usize,
}

impl<B: Backend> Conv1d<B> {
    /// `out = gelu(conv(x) + bias)`, or `out += …` with `accumulate`; `x` packed `[T, C_in]`, `out` packed
    /// `[ceil(T / stride), C_out]`.
    ///
    /// # Panics
    /// If the shapes do not fit.
    pub fn forward_gelu(&self, backend: &B, out: &mut B::Buffer, x: View<'_, B>, accumulate: bool) {
        let epilogue =
            Epilogue { bias: Some(&self.bias), activation: Activation::Gelu, accumulate };
        backend.conv1d(out, x, &self.weight, self.stride, epilogue);
    }
}
