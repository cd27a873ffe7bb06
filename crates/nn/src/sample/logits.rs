//! Reductions of raw logits, on this machine's vectors.

use stonechat_compute::{Isa, cpu, simd};

/// `ln Σ exp(logits)`; negative infinity of none.
#[must_use]
pub fn log_sum_exp(logits: &[f32]) -> f32 {
    cpu::log_sum_exp(isa(), logits)
}

/// The greatest value, which NaN never is; negative infinity of none.
#[must_use]
pub fn max(logits: &[f32]) -> f32 {
    cpu::max(isa(), logits)
}

/// Opening a CPU says what is wrong with the variable that chooses; beside a GPU it does not matter.
fn isa() -> Isa {
    Isa::best().unwrap_or(Isa::Scalar(simd::Scalar::new()))
}
