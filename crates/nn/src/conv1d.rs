//! Convolution over time (Whisper's encoder stem).

use stonechat_compute::op::{ConvArgs, MatmulArgs, Op, Tensor};

use crate::{Activation, Linear, Recorder};

/// Convolution over time with kernel size 3 and padding 1, see [`Op::Conv1d`].
#[derive(Debug, Clone)]
pub struct Conv1d {
    /// `[C_out, 3 * C_in]`, tap-major: `w[o, tap * C_in + i]`.
    pub linear: Linear,
    /// Input rows per output row.
    pub stride: usize,
}

impl Conv1d {
    /// `act(conv(x) + bias)`.
    ///
    /// # Panics
    /// If the shapes do not fit.
    #[track_caller]
    pub fn record(&self, r: &mut Recorder, x: Tensor, activation: Activation) -> Tensor {
        let Linear { weight, bias } = self.linear.clone();
        let matmul = MatmulArgs { weight, bias, activation };
        r.op(Op::Conv1d(ConvArgs { matmul, stride: self.stride }), &[x])
    }
}
