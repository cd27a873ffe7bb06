//! Log-probabilities of tokens in the shapes of OpenAI and llama-server.

use serde_json::{Map, Value, json};
use stonechat::llm::TokenProbs;
use stonechat::text::Tokenizer;

/// A token: its id, text, bytes and log-probability. JSON has no infinity, so that −∞ is the smallest number.
fn entry(tokenizer: &Tokenizer, id: u32, logprob: f32) -> Value {
    let bytes = tokenizer.token_piece(id, true);
    json!({
        "id": id,
        "token": String::from_utf8_lossy(bytes),
        "bytes": bytes,
        "logprob": finite(logprob),
    })
}

fn finite(logprob: f32) -> f32 {
    logprob.clamp(f32::MIN, f32::MAX)
}

/// Tokens with the `n` most probable ones of each.
fn entries(tokenizer: &Tokenizer, probs: &[TokenProbs], n: usize) -> Vec<Value> {
    let of_token = |probs: &TokenProbs| {
        let mut value = entry(tokenizer, probs.token, probs.logprob);
        let top = probs.top.iter().take(n);
        let top: Vec<Value> = top.map(|prob| entry(tokenizer, prob.token, prob.logprob)).collect();
        if let Some(fields) = value.as_object_mut() {
            fields.insert("top_logprobs".to_owned(), top.into());
        }
        value
    };
    probs.iter().map(of_token).collect()
}

/// `completion_probabilities` of llama-server.
pub(crate) fn native_probabilities(tokenizer: &Tokenizer, probs: &[TokenProbs], n: usize) -> Value {
    entries(tokenizer, probs, n).into()
}

/// `logprobs` of OpenAI's chat.
pub(crate) fn chat_logprobs(tokenizer: &Tokenizer, probs: &[TokenProbs], n: usize) -> Value {
    json!({"content": entries(tokenizer, probs, n), "refusal": null})
}

/// `logprobs` of OpenAI's completions, from the text offset `offset` on, with llama-server's `content` beside it.
pub(crate) fn completion_logprobs(
    tokenizer: &Tokenizer,
    probs: &[TokenProbs],
    n: usize,
    mut offset: usize,
) -> Value {
    let name = |id: u32| String::from_utf8_lossy(tokenizer.token_piece(id, true)).into_owned();
    let (mut tokens, mut logprobs, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
    for token in probs {
        let text = name(token.token);
        let top = token.top.iter().take(n);
        let top: Map<String, Value> =
            top.map(|prob| (name(prob.token), finite(prob.logprob).into())).collect();
        tops.push(top);
        logprobs.push(finite(token.logprob));
        offsets.push(offset);
        offset += text.chars().count();
        tokens.push(text);
    }
    json!({
        "tokens": tokens,
        "token_logprobs": logprobs,
        "top_logprobs": if n > 0 { json!(tops) } else { Value::Null },
        "text_offset": offsets,
        "content": entries(tokenizer, probs, n),
    })
}
