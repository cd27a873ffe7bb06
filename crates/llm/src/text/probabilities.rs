//! Log-probabilities of tokens.

use stonechat_nn::TopKEntry;
use stonechat_sampling::{Candidate, log_sum_exp};

/// Most tokens that are found in one pass over the logits.
const MAX_SCANNED: usize = 16;

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
    let top = most_probable(logits, n)
        .into_iter()
        .map(|token| {
            let logit = logits[token as usize];
            TokenProb { token, logit, logprob: logit - total }
        })
        .collect();
    TokenProbs { token, logprob: logits[token as usize] - total, top }
}

/// The tokens of the `n` largest logits in descending order; of equal logits the lower token id comes first.
fn most_probable(logits: &[f32], n: usize) -> Vec<u32> {
    let logit = |token: u32| logits[token as usize];
    let by_logit = |&a: &u32, &b: &u32| logit(b).total_cmp(&logit(a)).then(a.cmp(&b));
    let n = n.min(logits.len());
    let tokens = 0..logits.len() as u32;
    if n <= MAX_SCANNED {
        // A few tokens are found in one pass, which allocates no list of the whole vocabulary.
        let mut top: Vec<u32> = Vec::with_capacity(n + 1);
        for token in tokens {
            let is_full = top.len() == n;
            if is_full && top.last().is_none_or(|&last| logit(token) <= logit(last)) {
                continue;
            }
            let place = top.partition_point(|other| by_logit(other, &token).is_lt());
            top.insert(place, token);
            top.truncate(n);
        }
        return top;
    }
    let mut order: Vec<u32> = tokens.collect();
    if n < order.len() {
        order.select_nth_unstable_by(n, by_logit);
        order.truncate(n);
    }
    order.sort_unstable_by(by_logit);
    order
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

#[cfg(test)]
mod tests {
    use super::{MAX_SCANNED, most_probable};

    #[test]
    fn the_most_probable_tokens_are_those_of_a_sorted_vocabulary() {
        let logits: Vec<f32> = (0..97u32).map(|i| (i * 31 % 23) as f32 - 11.0).collect();
        let mut order: Vec<u32> = (0..97).collect();
        order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
        for n in [0, 1, 2, MAX_SCANNED, MAX_SCANNED + 1, 97, 200] {
            assert_eq!(most_probable(&logits, n), order[..n.min(97)], "{n}");
        }
    }
}
