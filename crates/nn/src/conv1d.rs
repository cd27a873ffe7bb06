//! Convolution over time.

use crate::backend::Activation;
use crate::{Backend, Epilogue, View};

/// Convolution over time with kernel 3 and padding 1.
#[derive(Debug)]
pub struct Conv1d<B: Backend> {
    /// `[C_out, 3 * C_in]`, tap-major.
    pub weight: B::Matrix,
    /// `[C_out]`.
    pub bias: B::Buffer,
    /// Step between two output positions.
    pub stride: usize,
}

impl<B: Backend> Conv1d<B> {
    /// `out[ceil(T / stride), C_out] = gelu(conv(x[T, C_in]))`, added to `out` if `accumulate`.
    pub fn forward_gelu(&self, backend: &B, out: &mut B::Buffer, x: View<'_, B>, accumulate: bool) {
        let epilogue =
            Epilogue { bias: Some(&self.bias), activation: Activation::Gelu, accumulate };
        backend.conv1d(out, x, &self.weight, self.stride, epilogue);
    }
}
