//! `logprobs` of OpenAI's completions: four lists with one item a token.

use std::iter::{once, repeat};
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value};
use stonechat::llm::TokenProbs;
use stonechat::text::{StreamDecoder, Tokenizer};

use super::probabilities::finite;
use super::{ProbFields, TokenEntry, token_entries};

/// `logprobs` of a completion. All lists have the same length, but `content`.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct CompletionLogprobs {
    tokens: Vec<String>,
    /// Null for the first token of a prompt, which nothing precedes.
    token_logprobs: Vec<Option<f64>>,
    /// Most probable tokens by text, and the token itself; null without `logprobs` of 1 or more.
    top_logprobs: Option<Vec<Option<Map<String, Value>>>>,
    /// Place of each token in the text, in characters.
    text_offset: Vec<usize>,
    /// llama-server's form of the same, of generated tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<Vec<TokenEntry>>,
}

impl CompletionLogprobs {
    /// Lists of generated tokens, of which the first is at `offset` of the text.
    pub(crate) fn of_text(
        tokenizer: &Tokenizer,
        probs: &[TokenProbs],
        fields: ProbFields,
        mut offset: usize,
    ) -> Self {
        let mut lists = Self::empty(fields);
        for token in probs {
            lists.push(tokenizer, (token.token, Some(token)), fields, offset);
            offset += name(tokenizer, token.token).chars().count();
        }
        lists.content = Some(token_entries(tokenizer, probs, fields));
        lists
    }

    /// Lists of a prompt, at the start of the text; `probs` has all tokens but the first.
    pub(crate) fn of_prompt(
        tokenizer: &Arc<Tokenizer>,
        prompt: &[u32],
        probs: &[TokenProbs],
        fields: ProbFields,
    ) -> Self {
        let (mut lists, mut offset) = (Self::empty(fields), 0);
        let mut decoder = StreamDecoder::new(Arc::clone(tokenizer));
        let probs = once(None).chain(probs.iter().map(Some)).chain(repeat(None));
        for (&token, probs) in prompt.iter().zip(probs) {
            lists.push(tokenizer, (token, probs), fields, offset);
            offset += decoder.push(token).map_or(0, |text| text.chars().count());
        }
        lists
    }

    /// Appends a token of which the text has nothing, such as the end token, at `offset`.
    pub(crate) fn push_end(
        &mut self,
        tokenizer: &Tokenizer,
        probs: &TokenProbs,
        fields: ProbFields,
        offset: usize,
    ) {
        self.push(tokenizer, (probs.token, Some(probs)), fields, offset);
    }

    /// The lists, followed by those of `next`, without `content`.
    pub(crate) fn followed_by(mut self, next: Self) -> Self {
        self.tokens.extend(next.tokens);
        self.token_logprobs.extend(next.token_logprobs);
        if let Some(tops) = &mut self.top_logprobs {
            tops.extend(next.top_logprobs.into_iter().flatten());
        }
        self.text_offset.extend(next.text_offset);
        Self { content: None, ..self }
    }

    fn empty(fields: ProbFields) -> Self {
        Self { top_logprobs: (fields.n > 0).then(Vec::new), ..Self::default() }
    }

    fn push(
        &mut self,
        tokenizer: &Tokenizer,
        (token, probs): (u32, Option<&TokenProbs>),
        fields: ProbFields,
        offset: usize,
    ) {
        self.tokens.push(name(tokenizer, token));
        self.token_logprobs.push(probs.map(|probs| finite(probs.logprob).into()));
        self.text_offset.push(offset);
        if let Some(tops) = &mut self.top_logprobs {
            tops.push(probs.map(|probs| top(tokenizer, probs, fields.n)));
        }
    }
}

/// The `n` most probable tokens, and the token itself. Tokens of the same text, such as parts of a character, keep the
/// largest log-probability.
fn top(tokenizer: &Tokenizer, probs: &TokenProbs, n: usize) -> Map<String, Value> {
    let mut top = Map::new();
    let most_probable = probs.top.iter().take(n).map(|prob| (prob.token, prob.logprob));
    for (token, logprob) in most_probable.chain(once((probs.token, probs.logprob))) {
        top.entry(name(tokenizer, token)).or_insert_with(|| finite(logprob).into());
    }
    top
}

fn name(tokenizer: &Tokenizer, token: u32) -> String {
    String::from_utf8_lossy(tokenizer.token_piece(token, true)).into_owned()
}
