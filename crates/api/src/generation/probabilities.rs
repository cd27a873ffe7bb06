//! Log-probabilities of tokens in the shapes of OpenAI and llama-server.

use serde_json::{Value, json};
use stonechat::llm::TokenProbs;
use stonechat::text::Tokenizer;

/// Number of most probable tokens that are reported, and the kind of their probabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ProbFields {
    /// Most probable tokens of each token.
    pub(crate) n: usize,
    /// `post_sampling_probs` of llama-server: probabilities after the samplers, as `prob` and `top_probs`.
    pub(crate) is_post_sampling: bool,
}

/// A token: its id, text, bytes and log-probability, or probability. JSON has no infinity, so that −∞ is the smallest
/// number.
fn entry(tokenizer: &Tokenizer, id: u32, logprob: f32, is_post_sampling: bool) -> Value {
    let bytes = tokenizer.token_piece(id, true);
    let (name, value) =
        if is_post_sampling { ("prob", logprob.exp()) } else { ("logprob", finite(logprob)) };
    json!({
        "id": id,
        "token": String::from_utf8_lossy(bytes),
        "bytes": bytes,
        name: value,
    })
}

/// JSON has no infinity: −∞ is the smallest number.
pub(super) fn finite(logprob: f32) -> f32 {
    logprob.clamp(f32::MIN, f32::MAX)
}

/// Tokens with the most probable ones of each.
pub(super) fn entries(
    tokenizer: &Tokenizer,
    probs: &[TokenProbs],
    fields: ProbFields,
) -> Vec<Value> {
    let is_post = fields.is_post_sampling;
    let of_token = |probs: &TokenProbs| {
        let mut value = entry(tokenizer, probs.token, probs.logprob, is_post);
        let top = probs.top.iter().take(fields.n);
        let top = top.map(|prob| entry(tokenizer, prob.token, prob.logprob, is_post));
        value[if is_post { "top_probs" } else { "top_logprobs" }] = top.collect();
        value
    };
    probs.iter().map(of_token).collect()
}

/// `completion_probabilities` of llama-server.
pub(crate) fn native_probabilities(
    tokenizer: &Tokenizer,
    probs: &[TokenProbs],
    fields: ProbFields,
) -> Value {
    entries(tokenizer, probs, fields).into()
}

/// `logprobs` of OpenAI's chat.
pub(crate) fn chat_logprobs(
    tokenizer: &Tokenizer,
    probs: &[TokenProbs],
    fields: ProbFields,
) -> Value {
    json!({"content": entries(tokenizer, probs, fields), "refusal": null})
}
