//! Prompts that ask a model whether a document fits a query, and the scores of its answers.

use stonechat::llm::GenerateOptions;
use stonechat::sampling::SamplingOptions;
use stonechat::text::Conversation;
use stonechat::{Completion, LlmInfo, Request};

use crate::chat_messages::message;
use crate::{ApiError, ApiResult};

/// System message of Qwen3-Reranker.
const QWEN_SYSTEM: &str = "Judge whether the Document meets the requirements based on the Query and the Instruct \
     provided. Note that the answer can only be \"yes\" or \"no\".";
/// Default instruction of Qwen3-Reranker.
const QWEN_INSTRUCTION: &str =
    "Given a web search query, retrieve relevant passages that answer the query";
/// Question to a chat model. It stands before the query, so that all documents share its tokens.
const QUESTION: &str =
    "Does the document answer the query? Reply with one word, \"yes\" or \"no\".";

/// A query and a document.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pair<'a> {
    pub(super) query: &'a str,
    pub(super) document: &'a str,
}

/// Form of the prompts of a model, and its labels.
#[derive(Debug, Clone, Copy)]
pub(super) struct Judge {
    /// Whether the model is Qwen3-Reranker, which was trained on one form.
    is_qwen: bool,
    /// First tokens of `yes` and `no`.
    labels: [u32; 2],
}

impl Judge {
    /// # Errors
    /// 501 if the vocabulary has no different tokens for both labels.
    pub(super) fn new(info: &LlmInfo) -> ApiResult<Self> {
        let tokenizer = info.model.tokenizer();
        let label = |text: &str| tokenizer.encode(text).first().copied();
        let (Some(yes), Some(no)) = (label("yes"), label("no")) else {
            return Err(ApiError::not_supported("the vocabulary has no tokens for `yes` and `no`"));
        };
        if yes == no {
            let error = "the vocabulary has no different tokens for `yes` and `no`";
            return Err(ApiError::not_supported(error));
        }
        let name = info.summary.name.to_ascii_lowercase();
        let is_qwen = info.model.config().architecture.name == "qwen3" && name.contains("rerank");
        Ok(Self { is_qwen, labels: [yes, no] })
    }

    /// Request for the label of a pair. The names of special tokens in it are text.
    ///
    /// # Errors
    /// If the chat template fails.
    pub(super) fn request(&self, info: &LlmInfo, pair: Pair<'_>) -> ApiResult<Request> {
        let Pair { query, document } = pair;
        let messages = if self.is_qwen {
            let text =
                format!("<Instruct>: {QWEN_INSTRUCTION}\n<Query>: {query}\n<Document>: {document}");
            vec![message("system", QWEN_SYSTEM), message("user", text)]
        } else {
            let text = format!("{QUESTION}\n\nQuery: {query}\n\nDocument: {document}");
            vec![message("user", text)]
        };
        let mut conversation =
            Conversation { messages, add_generation_prompt: true, ..Conversation::default() };
        // A model that thinks first has no label at its first token.
        conversation.variables.insert("enable_thinking".to_owned(), false.into());
        let prompt = info.chat_format.prompt(conversation)?;
        let options = GenerateOptions {
            n_predict: Some(1),
            sampling: SamplingOptions::greedy(),
            probs_of: self.labels.to_vec(),
            ..GenerateOptions::default()
        };
        Ok(Request::new(info.model.tokenize_marked_chat(&prompt), options))
    }
}

/// Logit of `yes` minus that of `no` at the first token of an answer.
///
/// # Errors
/// 500 if it has no probabilities.
pub(super) fn margin(text: &Completion) -> ApiResult<f64> {
    match text.probs.first().or(text.end_probs.as_ref()).map(|probs| &*probs.top) {
        Some([yes, no]) => Ok(f64::from(yes.logit) - f64::from(no.logit)),
        _ => Err(ApiError::server("a text was scored without its labels")),
    }
}

/// Softmax of both labels: the probability of `yes`.
pub(super) fn probability(margin: f64) -> f64 {
    1.0 / (1.0 + (-margin).exp())
}

#[cfg(test)]
mod tests {
    use super::probability;

    #[test]
    fn a_score_is_a_probability() {
        assert_eq!([0.0, f64::INFINITY, f64::NEG_INFINITY].map(probability), [0.5, 1.0, 0.0]);
        assert!((probability(1.0) + probability(-1.0) - 1.0).abs() < 1e-12);
    }
}
