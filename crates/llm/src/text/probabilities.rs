//! Log-probabilities of tokens.

use stonechat_nn::TopKEntry;
use stonechat_sampling::{Candidate, log_sum_exp};

/// Sampled token and the most probable tokens, by the raw logits or after the samplers.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TokenProbs {
    /// The sampled token.
    pub token: u32,
    /// Log-probability of the token.
    pub logprob: f32,
    /// The most probable tokens, best first.
    pub top: Vec<TokenProb>,
}

/// A token with its logit and log-probability.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct TokenProb {
    /// The token.
    pub token: u32,
    /// Logit of the token.
    pub logit: f32,
    /// Log-probability of the token.
    pub logprob: f32,
}

impl TokenProbs {
    /// A token that was not drawn, which is certain.
    pub(crate) fn certain(token: u32) -> Self {
        Self { token, logprob: 0.0, top: vec![TokenProb { token, logit: 0.0, logprob: 0.0 }] }
    }
}

/// The log-probability of `token` and the `n` most probable tokens.
pub(crate) fn token_probs(logits: &[f32], token: u32, n: usize) -> TokenProbs {
    let total = log_sum_exp(logits);
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    let n = n.min(order.len());
    let by_logit =
        |&a: &u32, &b: &u32| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b));
    if n < order.len() {
        order.select_nth_unstable_by(n, by_logit);
        order.truncate(n);
    }
    order.sort_unstable_by(by_logit);
    let top = order
        .into_iter()
        .map(|token| {
            let logit = logits[token as usize];
            TokenProb { token, logit, logprob: logit - total }
        })
        .collect();
    TokenProbs { token, logprob: logits[token as usize] - total, top }
}

/// [`token_probs`] from the top-k logits, which include `token` and the `n` most probable tokens.
pub(crate) fn top_k_probs(
    top_k: &[TopKEntry],
    log_sum_exp: f32,
    token: u32,
    n: usize,
) -> TokenProbs {
    let prob = |entry: &TopKEntry| TokenProb {
        token: entry.index,
        logit: entry.value,
        logprob: entry.value - log_sum_exp,
    };
    let sampled = top_k.iter().find(|entry| entry.index == token).expect("a token of these");
    let logprob = prob(sampled).logprob;
    TokenProbs { token, logprob, top: top_k[..n].iter().map(prob).collect() }
}

/// Probability of `token` and of the `n` most probable candidates of a draw.
pub(crate) fn drawn_probs(candidates: &[Candidate], token: u32, n: usize) -> TokenProbs {
    let prob = |candidate: &Candidate| TokenProb {
        token: candidate.token,
        logit: candidate.logit,
        logprob: candidate.p.ln(),
    };
    let drawn = candidates.iter().find(|candidate| candidate.token == token);
    let mut top: Vec<TokenProb> = candidates.iter().map(prob).collect();
    let by_prob =
        |a: &TokenProb, b: &TokenProb| b.logprob.total_cmp(&a.logprob).then(a.token.cmp(&b.token));
    if n < top.len() {
        top.select_nth_unstable_by(n, by_prob);
        top.truncate(n);
    }
    top.sort_unstable_by(by_prob);
    // A token that the grammar alone leaves is certain.
    let logprob = drawn.map_or(0.0, |drawn| prob(drawn).logprob);
    TokenProbs { token, logprob, top }
}

/// Classifier-free guidance on log-probabilities: `logits = negative + scale * (logits - negative)`.
pub(crate) fn guide(logits: &mut [f32], negative: &[f32], scale: f32) {
    let (total, negative_total) = (log_sum_exp(logits), log_sum_exp(negative));
    for (logit, other) in logits.iter_mut().zip(negative) {
        let (with, without) = (*logit - total, *other - negative_total);
        *logit = without + scale * (with - without);
    }
}
