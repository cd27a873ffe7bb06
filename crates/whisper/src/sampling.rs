//! Choosing a token from logits.

use stonechat_nn::sample::Rng;

/// A chosen token and its log-probability at temperature 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Choice {
    pub(crate) token: u32,
    pub(crate) logprob: f32,
}

/// The most probable token; the first of equals.
pub(crate) fn greedy(logits: &[f32]) -> Choice {
    let mut best = 0;
    for (i, &logit) in logits.iter().enumerate() {
        if logit > logits[best] {
            best = i;
        }
    }
    Choice { token: best as u32, logprob: logits[best] - log_sum_exp(logits) }
}

/// A draw from `softmax(logits / temperature)`.
pub(crate) fn sample(logits: &[f32], temperature: f32, rng: &mut Rng) -> Choice {
    let max = max(logits);
    let weight = |logit: f32| f64::from(((logit - max) / temperature).exp());
    let total: f64 = logits.iter().map(|&l| weight(l)).sum();
    let mut left = rng.uniform() * total;
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
    Choice { token: token as u32, logprob: logits[token] - log_sum_exp(logits) }
}

/// `exp(logits[token]) / Σ exp(logits)`.
pub(crate) fn probability(logits: &[f32], token: u32) -> f32 {
    (logits[token as usize] - log_sum_exp(logits)).exp()
}

fn log_sum_exp(logits: &[f32]) -> f32 {
    let max = max(logits);
    // Eight partial sums let the compiler keep several exponentials in flight.
    let mut sums = [0.0f32; 8];
    let (chunks, tail) = logits.as_chunks::<8>();
    for chunk in chunks {
        for (sum, &l) in sums.iter_mut().zip(chunk) {
            // Most logits are suppressed or negligible; their exponential is not worth its time.
            if l - max > -30.0 {
                *sum += (l - max).exp();
            }
        }
    }
    for &l in tail {
        sums[0] += (l - max).exp();
    }
    max + sums.iter().sum::<f32>().ln()
}

fn max(logits: &[f32]) -> f32 {
    logits.iter().copied().fold(f32::NEG_INFINITY, f32::max)
}

#[cfg(test)]
mod tests {
    use stonechat_nn::sample::Rng;

    use super::{greedy, probability, sample};

    #[test]
    fn greedy_takes_the_first_maximum_and_its_log_probability() {
        let choice = greedy(&[0.0, 2.0, 2.0, f32::NEG_INFINITY]);
        assert_eq!(choice.token, 1);
        let expected = 2.0 - (1.0 + 2.0 * 2f32.exp()).ln();
        assert!((choice.logprob - expected).abs() < 1e-6);
    }

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
            counts[sample(&logits, temperature, &mut rng).token as usize] += 1;
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
}
