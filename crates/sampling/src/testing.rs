//! Shared test code of the samplers.

use crate::candidates::Candidates;
use crate::token_values::TokenValues;

/// Runs `sampler` on the logits `ln p`. Returns the non-zero probabilities, in descending order.
pub(super) fn apply(probabilities: &[f32], sampler: impl FnOnce(&mut Candidates)) -> Vec<f32> {
    apply_with_values(probabilities, |candidates, _| sampler(candidates))
}

/// The same for a sampler that needs values by token.
pub(super) fn apply_with_values(
    probabilities: &[f32],
    sampler: impl FnOnce(&mut Candidates, &mut TokenValues),
) -> Vec<f32> {
    let mut candidates = Candidates::new(probabilities.len());
    let logits: Vec<f32> = probabilities.iter().map(|p| p.ln()).collect();
    candidates.load(&logits);
    sampler(&mut candidates, &mut TokenValues::new(probabilities.len()));
    let mut left: Vec<f32> = candidates.softmax().iter().map(|c| c.p).collect();
    left.retain(|&p| p > 0.0);
    left.sort_by(|a, b| b.total_cmp(a));
    left
}

/// Asserts equality within 2e-5.
#[track_caller]
pub(super) fn check(got: &[f32], expected: &[f32]) {
    let near = |(a, b): (&f32, &f32)| (a - b).abs() < 2e-5;
    let close = got.len() == expected.len() && got.iter().zip(expected).all(near);
    assert!(close, "expected {expected:?}, got {got:?}");
}
