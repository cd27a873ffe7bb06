//! Reductions of logits, on SIMD.

use stonechat_compute::{Isa, cpu, simd};

/// Log-sum-exp `ln Σ exp(logits)`: `logit − log_sum_exp` is a log-probability. −∞ if `logits` is empty.
#[must_use]
pub fn log_sum_exp(logits: &[f32]) -> f32 {
    cpu::log_sum_exp(isa(), logits)
}

/// Maximum, ignoring NaN. −∞ if `logits` is empty.
#[must_use]
pub fn max(logits: &[f32]) -> f32 {
    cpu::max(isa(), logits)
}

/// The best instruction set. An invalid `STONECHAT_ISA` is reported when the CPU backend is opened; here it means scalar.
fn isa() -> Isa {
    Isa::best().unwrap_or(Isa::Scalar(simd::Scalar::new()))
}
