//! Layer norm and RMS norm.

use stonechat_compute::op::{NormArgs, Op, Tensor};

use crate::Recorder;

/// The norm of an architecture.
#[derive(Debug, Clone)]
pub enum Norm {
    /// Layer norm.
    Layer(NormArgs),
    /// RMS norm.
    Rms(NormArgs),
}

impl Norm {
    /// The norm of the rows of `x`.
    ///
    /// # Panics
    /// If the shapes do not fit.
    #[track_caller]
    pub fn record(&self, r: &mut Recorder, x: Tensor) -> Tensor {
        let op = match self.clone() {
            Self::Layer(args) => Op::LayerNorm(args),
            Self::Rms(args) => Op::RmsNorm(args),
        };
        r.op(op, &[x])
    }
}
