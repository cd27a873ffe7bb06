//! Linear layers.

use stonechat_compute::op::{MatmulArgs, Op, Tensor, Weight};

use crate::{Activation, Recorder};

/// Linear layer `y = act(x·Wᵀ + b)`, for every type of `W`.
#[derive(Debug, Clone)]
pub struct Linear {
    /// `[N, K]`.
    pub weight: Weight,
    /// `[N]`.
    pub bias: Option<Weight>,
}

impl Linear {
    /// `x·Wᵀ + b`: `[T, K]` to `[T, N]`.
    ///
    /// # Panics
    /// If the shapes do not fit, as the other method does.
    #[track_caller]
    pub fn record(&self, r: &mut Recorder, x: Tensor) -> Tensor {
        self.record_activated(r, x, Activation::None)
    }

    /// `act(x·Wᵀ + b)`.
    #[track_caller]
    pub fn record_activated(&self, r: &mut Recorder, x: Tensor, activation: Activation) -> Tensor {
        let Self { weight, bias } = self.clone();
        r.op(Op::Matmul(MatmulArgs { weight, bias, activation }), &[x])
    }
}
