//! Statistics of logits and sampling at a temperature.

use stonechat_sampling::{Rng, log_sum_exp, max};

/// A sampled token and its log-probability at temperature 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct SampledToken {
    pub(crate) token: u32,
    pub(crate) logprob: f32,
}

/// Statistics of one row of logits.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct LogitStats {
    /// `ln Σ exp(logits)`.
    pub(crate) log_sum_exp: f32,
    /// Tokens with the largest finite logits, descending; equal logits in order of token.
    pub(crate) top: Vec<(u32, f32)>,
}

/// Samples from `softmax(logits / temperature)`; `None` if every logit is negative infinity.
pub(crate) fn sample(
    logits: &[f32],
    log_sum_exp: f32,
    temperature: f32,
    rng: &mut Rng,
) -> Option<SampledToken> {
    let max = max(logits);
    if max == f32::NEG_INFINITY {
        return None;
    }
    let weight = |logit: f32| f64::from(((logit - max) / temperature).exp());
    let sum: f64 = logits.iter().map(|&l| weight(l)).sum();
    let mut left = rng.uniform() * sum;
    let mut token = 0;
    for (i, &logit) in logits.iter().enumerate() {
        let w = weight(logit);
        if w > 0.0 {
            token = i;
            left -= w;
            if left < 0.0 {
                break;
            }
        }
    }
    Some(SampledToken { token: token as u32, logprob: logits[token] - log_sum_exp })
}

/// `exp(logits[token]) / Σ exp(logits)`.
pub(crate) fn probability(logits: &[f32], token: u32) -> f32 {
    (logits[token as usize] - log_sum_exp(logits)).exp()
}

#[cfg(test)]
mod tests {
    use stonechat_sampling::{Rng, log_sum_exp};

    use super::{probability, sample};

    #[test]
    fn samples_follow_the_distribution() {
        let logits = [0.0f32, 1.0, 2.0, f32::NEG_INFINITY, -1.0];
        let temperature = 0.7;
        let weights: Vec<f64> = logits.iter().map(|&l| f64::from(l / temperature).exp()).collect();
        let total: f64 = weights.iter().sum();
        let mut rng = Rng::new(1);
        let n = 200_000;
        let mut counts = [0usize; 5];
        for _ in 0..n {
            counts[sample(&logits, log_sum_exp(&logits), temperature, &mut rng).unwrap().token
                as usize] += 1;
        }
        assert_eq!(counts[3], 0);
        for (count, weight) in counts.iter().zip(&weights) {
            let p = weight / total;
            let sigma = (p * (1.0 - p) / n as f64).sqrt();
            assert!((*count as f64 / n as f64 - p).abs() <= 5.0 * sigma + 1e-12);
        }
    }

    #[test]
    fn probabilities_sum_to_one() {
        let logits = [3.0f32, -2.0, 0.5, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0];
        let sum: f32 = (0..9).map(|t| probability(&logits, t)).sum();
        assert!((sum - 1.0).abs() < 1e-6);
    }

    #[test]
    fn the_log_probability_is_that_of_temperature_1() {
        // Large logits: only their distance from the maximum is exponentiated.
        let logits = [999.0f32, 1000.0, f32::NEG_INFINITY];
        let log_sum_exp = log_sum_exp(&logits);
        let mut rng = Rng::new(3);
        let mut drawn = [0; 3];
        for _ in 0..1000 {
            let sampled = sample(&logits, log_sum_exp, 2.0, &mut rng).unwrap();
            let expected = logits[sampled.token as usize] - log_sum_exp;
            assert!((sampled.logprob - expected).abs() < 1e-6 && expected < -0.3);
            drawn[sampled.token as usize] += 1;
        }
        // p = 1 / (1 + e^-0.5) = 0.622; a standard deviation is 15.
        assert!((545..=700).contains(&drawn[1]) && drawn[2] == 0, "{drawn:?}");
        assert_eq!(sample(&[f32::NEG_INFINITY; 3], f32::NEG_INFINITY, 1.0, &mut rng), None);
    }
}
