//! Entropy of the candidates.

use crate::candidates::Candidate;

/// Shannon entropy `−Σ p ln p`, in nats.
pub(super) fn entropy(candidates: &[Candidate]) -> f64 {
    let terms = candidates.iter().filter(|c| c.p > 0.0).map(|c| f64::from(c.p));
    -terms.map(|p| p * p.ln()).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::{Candidate, entropy};

    #[test]
    fn impossible_candidates_have_no_part() {
        let of = |p: &[f32]| {
            let candidate = |&p: &f32| Candidate { token: 0, logit: 0.0, p };
            entropy(&p.iter().map(candidate).collect::<Vec<_>>())
        };
        assert_eq!(of(&[1.0, 0.0]), 0.0);
        assert!((of(&[0.5, 0.0, 0.25, 0.25]) - 1.5 * 2f64.ln()).abs() < 1e-9);
    }
}
