//! Reductions of logits, on SIMD.

use stonechat_compute::{Isa, cpu};

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
    Isa::best().unwrap_or_else(|_| Isa::lowest())
}

#[cfg(test)]
mod tests {
    use super::{log_sum_exp, max};

    #[test]
    fn reductions_are_those_of_the_definition() {
        let logits: Vec<f32> = (0..100).map(|i| (i * 37 % 50) as f32 - 60.5).collect();
        let sum: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
        assert!((f64::from(log_sum_exp(&logits)) - sum.ln()).abs() < 1e-5);
        assert_eq!(max(&logits), -11.5);
        assert_eq!([log_sum_exp(&[]), max(&[])], [f32::NEG_INFINITY; 2]);
    }
}
