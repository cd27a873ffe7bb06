//! Mirostat, versions 1 and 2: truncation with feedback on the surprise of drawn tokens.

use crate::candidates::Candidates;

/// State of both versions. The surprise of a token is `−log2 p` bits.
///
/// ```text
/// v1: s = least-squares Zipf exponent of the top ZIPF_TOKENS
///     e = s - 1;  k = (e * 2^mu / (1 - V^-e))^(1/s);  keep the top k
/// v2: keep tokens with a surprise of at most mu
/// accept: mu -= eta * (surprise - tau)
/// ```
///
/// Source: Basu et al. 2021, "Mirostat: A Neural Text Decoding Algorithm that Directly Controls
/// Perplexity", algorithms 1 and 2. llama.cpp: `--mirostat 1` and `--mirostat 2`.
#[derive(Debug, Clone)]
pub(super) struct Mirostat {
    /// Target surprise in bits.
    tau: f32,
    /// Learning rate.
    eta: f32,
    /// Largest surprise in bits; `2 tau` at the start.
    mu: f32,
    /// The drawn token and its surprise, until it is accepted.
    pending: Option<(u32, f32)>,
}

/// Top tokens for the estimate of the Zipf exponent in version 1.
const ZIPF_TOKENS: usize = 100;

impl Mirostat {
    pub(super) fn new(tau: f32, eta: f32) -> Self {
        Self { tau, eta, mu: 2.0 * tau, pending: None }
    }

    /// Version 1: keeps the top `k`, `k` from Zipf's law and `mu`.
    pub(super) fn truncate_v1(&self, candidates: &mut Candidates, vocab_size: usize) {
        candidates.softmax();
        let sorted = candidates.sort_prefix(ZIPF_TOKENS);
        let (mut sum_tb, mut sum_tt) = (0.0f32, 0.0f32);
        let top = &sorted[..ZIPF_TOKENS.min(sorted.len())];
        for (i, pair) in top.windows(2).enumerate() {
            let t = ((i + 2) as f32 / (i + 1) as f32).ln();
            sum_tb += t * (pair[0].p / pair[1].p).ln();
            sum_tt += t * t;
        }
        let s = sum_tb / sum_tt;
        let epsilon = s - 1.0;
        let rest = 1.0 - (vocab_size as f32).powf(-epsilon);
        let k = (epsilon * 2f32.powf(self.mu) / rest).powf(1.0 / s);
        // The cast maps NaN (a flat or single-token distribution) to 0 and saturates infinity.
        candidates.keep_top_k((k as usize).max(1));
    }

    /// Version 2: keeps tokens with a surprise of at most `mu`, at least one.
    pub(super) fn truncate_v2(&self, candidates: &mut Candidates) {
        let surprising = |p: f32| -p.log2() > self.mu;
        let kept = candidates.softmax().iter().filter(|c| !surprising(c.p)).count();
        candidates.keep_top_k(kept.max(1));
    }

    /// Records a draw; the state is updated when the token is accepted.
    pub(super) fn record_draw(&mut self, token: u32, p: f32) {
        self.pending = Some((token, -p.log2()));
    }

    /// Updates `mu` if `token` is the drawn one; other tokens (of a prompt) leave it unchanged.
    pub(super) fn accept(&mut self, token: u32) {
        if let Some((drawn, surprise)) = self.pending.take()
            && drawn == token
        {
            self.mu -= self.eta * (surprise - self.tau);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Mirostat;
    use crate::testing::{apply, check};

    #[test]
    fn version_2_cuts_at_mu() {
        let mut mirostat = Mirostat::new(1.0, 0.1);
        let p = [0.1, 0.2, 0.3, 0.4];
        // μ = 2 bits: a probability of at least 0.25.
        check(&apply(&p, |c| mirostat.truncate_v2(c)), &[0.4 / 0.7, 0.3 / 0.7]);
        // Drawing one of 3 bits: μ = 2 − 0.1 · (3 − 1) = 1.8, a probability of 0.287.
        mirostat.record_draw(3, 0.125);
        mirostat.accept(3);
        assert!((mirostat.mu - 1.8).abs() < 1e-6);
        check(&apply(&p, |c| mirostat.truncate_v2(c)), &[0.4 / 0.7, 0.3 / 0.7]);
        mirostat.record_draw(3, 0.001);
        mirostat.accept(3);
        check(&apply(&p, |c| mirostat.truncate_v2(c)), &[1.0]);
    }

    #[test]
    fn only_the_drawn_token_moves_the_state() {
        let mut mirostat = Mirostat::new(5.0, 0.1);
        mirostat.accept(1);
        mirostat.record_draw(2, 0.5);
        mirostat.accept(1);
        mirostat.accept(2);
        assert_eq!(mirostat.mu, 10.0);
        mirostat.record_draw(2, 0.5);
        mirostat.accept(2);
        assert!((mirostat.mu - 10.4).abs() < 1e-6);
    }

    #[test]
    fn version_1_estimates_zipf() {
        // p ∝ 1 / i^1.5: s = 1.5, so k = (0.5 · 2^μ / (1 − 1000^−0.5))^(2/3).
        let weights: Vec<f32> = (1..=1000).map(|i| (i as f32).powf(-1.5)).collect();
        let sum: f32 = weights.iter().sum();
        let p: Vec<f32> = weights.iter().map(|w| w / sum).collect();
        let mirostat = Mirostat::new(3.0, 0.1);
        let k = (0.5 * 64.0 / (1.0 - 1000f32.powf(-0.5))).powf(2.0 / 3.0);
        assert_eq!(apply(&p, |c| mirostat.truncate_v1(c, 1000)).len(), k as usize);
    }

    #[test]
    fn version_1_survives_flat_and_single_token_distributions() {
        let mirostat = Mirostat::new(3.0, 0.1);
        assert!(!apply(&[0.25; 4], |c| mirostat.truncate_v1(c, 4)).is_empty());
        check(&apply(&[1.0], |c| mirostat.truncate_v1(c, 1)), &[1.0]);
    }

    #[test]
    fn a_surprise_of_mu_is_kept() {
        // 2 bits each, and mu is 2.
        check(&apply(&[0.25; 4], |c| Mirostat::new(1.0, 0.1).truncate_v2(c)), &[0.25; 4]);
    }

    #[test]
    fn version_1_follows_mu_and_the_exponent() {
        for (exponent, tau, n) in [(1.2f32, 2.0f32, 300), (2.0, 4.0, 5000), (1.5, 1.0, 90)] {
            let weights: Vec<f32> = (1..=n).map(|i| (i as f32).powf(-exponent)).collect();
            let sum: f32 = weights.iter().sum();
            let p: Vec<f32> = weights.iter().map(|w| w / sum).collect();
            let e = exponent - 1.0;
            let rest = 1.0 - (n as f32).powf(-e);
            let k = (e * 2f32.powf(2.0 * tau) / rest).powf(1.0 / exponent);
            let mirostat = Mirostat::new(tau, 0.1);
            let kept = apply(&p, |c| mirostat.truncate_v1(c, n)).len();
            assert_eq!(kept, k as usize, "exponent {exponent}, tau {tau}: {k}");
        }
    }
}
