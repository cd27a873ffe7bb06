//! Choosing a token from logits.

use stonechat_nn::sample::Rng;

/// A chosen token and its log-probability at temperature 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Choice {
    pub(crate) token: u32,
    pub(crate) logprob: f32,
}

/// The `n` greatest finite logits with their tokens, greatest first; equal ones by token.
pub(crate) fn top(logits: &[f32], n: usize) -> Vec<(u32, f32)> {
    let mut best: Vec<(u32, f32)> = Vec::with_capacity(n + 1);
    let mut least = f32::NEG_INFINITY;
    for (token, &logit) in logits.iter().enumerate() {
        if logit > least {
            let at = best.partition_point(|b| b.1 >= logit);
            best.insert(at, (token as u32, logit));
            best.truncate(n);
            if best.len() == n {
                least = best[n - 1].1;
            }
        }
    }
    best
}

/// A draw from `softmax(logits / temperature)`; none if every token is forbidden.
pub(crate) fn sample(logits: &[f32], temperature: f32, rng: &mut Rng) -> Option<Choice> {
    let max = max(logits);
    if max == f32::NEG_INFINITY {
        return None;
    }
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
    Some(Choice { token: token as u32, logprob: logits[token] - log_sum_exp(logits) })
}

/// `exp(logits[token]) / Σ exp(logits)`.
pub(crate) fn probability(logits: &[f32], token: u32) -> f32 {
    (logits[token as usize] - log_sum_exp(logits)).exp()
}

/// `ln Σ exp(logits)`.
pub(crate) fn log_sum_exp(logits: &[f32]) -> f32 {
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

/// The greatest value; negative infinity of none.
pub(crate) fn max(values: &[f32]) -> f32 {
    // Lanes of their own let the compiler use vectors.
    let mut lanes = [f32::NEG_INFINITY; 16];
    let (chunks, tail) = values.as_chunks::<16>();
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane = if value > *lane { value } else { *lane };
        }
    }
    lanes.iter().chain(tail).copied().fold(f32::NEG_INFINITY, f32::max)
}

#[cfg(test)]
mod tests {
    use stonechat_nn::sample::Rng;

    use super::{log_sum_exp, max, probability, sample, top};

    #[test]
    fn the_top_is_sorted_and_equals_keep_their_order() {
        let logits = [0.0, 2.0, f32::NEG_INFINITY, 2.0, 3.0, -1.0];
        assert_eq!(top(&logits, 1), [(4, 3.0)]);
        assert_eq!(top(&logits, 3), [(4, 3.0), (1, 2.0), (3, 2.0)]);
        assert_eq!(top(&logits, 9).len(), 5, "what is forbidden is not among them");
    }

    #[test]
    fn sums_and_maxima_cover_every_length() {
        for n in 0..40u16 {
            let logits: Vec<f32> = (0..n).map(|i| f32::from(i * 37 % 41) / 8.0).collect();
            let sum: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
            assert!((f64::from(log_sum_exp(&logits)) - sum.ln()).abs() < 1e-5 || n == 0);
            let expected = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            assert_eq!(max(&logits).to_bits(), expected.to_bits());
        }
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
            counts[sample(&logits, temperature, &mut rng).unwrap().token as usize] += 1;
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
