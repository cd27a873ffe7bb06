//! Entropy of the candidates.

use super::candidates::Candidate;

/// Shannon entropy `−Σ p ln p`, in nats.
pub(super) fn entropy(candidates: &[Candidate]) -> f64 {
    let terms = candidates.iter().filter(|c| c.p > 0.0).map(|c| f64::from(c.p));
    -terms.map(|p| p * p.ln()).sum::<f64>()
}
