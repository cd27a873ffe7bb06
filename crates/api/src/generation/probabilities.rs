//! Log-probabilities of tokens in the shapes of OpenAI and llama-server.

use serde::Serialize;
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

/// A token with its log-probability or probability; that of a text has the most probable tokens in its place.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct TokenEntry {
    id: u32,
    token: String,
    bytes: Vec<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prob: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprob: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_probs: Option<Vec<Self>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_logprobs: Option<Vec<Self>>,
}

/// `logprobs` of OpenAI's chat.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ChatLogprobs {
    content: Vec<TokenEntry>,
    /// Always null.
    refusal: Option<()>,
}

impl TokenEntry {
    fn new(tokenizer: &Tokenizer, id: u32, logprob: f32, is_post_sampling: bool) -> Self {
        let bytes = tokenizer.token_piece(id, true);
        Self {
            id,
            token: String::from_utf8_lossy(bytes).into_owned(),
            bytes: bytes.to_vec(),
            prob: is_post_sampling.then(|| logprob.exp().into()),
            logprob: (!is_post_sampling).then(|| finite(logprob).into()),
            top_probs: None,
            top_logprobs: None,
        }
    }
}

/// JSON has no infinity: −∞ is the smallest number.
pub(super) fn finite(logprob: f32) -> f32 {
    logprob.clamp(f32::MIN, f32::MAX)
}

/// Tokens with the most probable ones of each: `completion_probabilities` of llama-server.
pub(crate) fn token_entries(
    tokenizer: &Tokenizer,
    probs: &[TokenProbs],
    fields: ProbFields,
) -> Vec<TokenEntry> {
    let is_post = fields.is_post_sampling;
    let entry = |id, logprob| TokenEntry::new(tokenizer, id, logprob, is_post);
    let of_token = |probs: &TokenProbs| {
        let top = probs.top.iter().take(fields.n);
        let top = Some(top.map(|prob| entry(prob.token, prob.logprob)).collect());
        let (top_probs, top_logprobs) = if is_post { (top, None) } else { (None, top) };
        TokenEntry { top_probs, top_logprobs, ..entry(probs.token, probs.logprob) }
    };
    probs.iter().map(of_token).collect()
}

impl ChatLogprobs {
    /// Lists of the tokens of a text.
    pub(crate) fn new(tokenizer: &Tokenizer, probs: &[TokenProbs], fields: ProbFields) -> Self {
        Self { content: token_entries(tokenizer, probs, fields), refusal: None }
    }
}
