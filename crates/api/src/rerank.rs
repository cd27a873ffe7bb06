//! `/v1/rerank` in the forms of Jina and of Hugging Face's text-embeddings-inference, and vLLM's `/v1/score`.
//!
//! A pair of a query and a document is a chat whose answer is `yes` or `no`: its score is the softmax of both labels' logits
//! at the first token. Nothing else is generated.

mod judge;
mod pairs;
mod score;

use serde::{Deserialize, Serialize};
use stonechat::{Completion, Llm, Request};
use web_time::Instant;

use crate::input_usage::InputUsage;
use crate::json::{JsonFields, ParseBody};
use crate::{ApiError, ApiResult, Defaults};

use judge::Pair;
use pairs::{check_number, requests, usage};

pub use score::{ScoreAnswer, ScoreBody, ScoreForm, Texts};

/// Body of a request to rank documents.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RerankBody {
    /// Name of the model.
    #[serde(default)]
    model: Option<String>,
    /// Query.
    query: String,
    /// Documents: texts, or objects with `text`.
    #[serde(default)]
    documents: Option<Vec<Document>>,
    /// Documents in the form of text-embeddings-inference, whose answer is a list.
    #[serde(default)]
    texts: Option<Vec<String>>,
    /// Number of most relevant documents of the answer; default all.
    #[serde(default)]
    top_n: Option<usize>,
    /// Whether the answer to `documents` has their texts.
    #[serde(default)]
    return_documents: Option<bool>,
    /// Whether the answer to `texts` has them.
    #[serde(default)]
    return_text: Option<bool>,
    /// Whether scores of `texts` are differences of logits instead of probabilities.
    #[serde(default)]
    raw_scores: Option<bool>,
}

/// Document of a request to rank.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(untagged, expecting = "expected a text or an object with `text`")]
pub enum Document {
    /// Text.
    Text(String),
    /// Object with a text.
    Object {
        /// Text.
        text: String,
    },
}

/// Form of the answer to a [`RerankBody`].
#[derive(Debug)]
pub struct RerankForm {
    model: String,
    documents: Vec<String>,
    is_list: bool,
    has_texts: bool,
    is_raw: bool,
    top_n: usize,
}

/// Answer to a [`RerankBody`], most relevant document first.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum RerankAnswer {
    /// In Jina's form.
    Object {
        /// Name of the model.
        model: String,
        /// `list`.
        object: &'static str,
        /// Tokens of the prompts.
        usage: InputUsage,
        /// Documents.
        results: Vec<RankedDocument>,
    },
    /// In the form of text-embeddings-inference.
    List(Vec<RankedText>),
}

/// Document of an answer in Jina's form.
#[derive(Debug, Serialize)]
pub struct RankedDocument {
    index: usize,
    relevance_score: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<DocumentText>,
}

#[derive(Debug, Serialize)]
struct DocumentText {
    text: String,
}

/// Document of an answer in the form of text-embeddings-inference.
#[derive(Debug, Serialize)]
pub struct RankedText {
    index: usize,
    score: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

impl ParseBody for RerankBody {
    fn parse(body: &[u8], defaults: &Defaults<'_>) -> ApiResult<Self> {
        let body: Self = JsonFields::parse_whole(body, defaults.max_choices)?;
        if body.query.is_empty() {
            return Err(ApiError::field("query", "a text", "an empty one"));
        }
        if body.top_n == Some(0) {
            return Err(ApiError::field("top_n", "at least 1", 0));
        }
        let is_list = body.texts.is_some();
        let (name, n) = match (&body.documents, &body.texts) {
            (Some(documents), None) => ("documents", documents.len()),
            (None, Some(texts)) => ("texts", texts.len()),
            (None, None) => return Err(ApiError::field("documents", "a list of texts", "none")),
            (Some(_), Some(_)) => {
                return Err(ApiError::field("texts", "none beside `documents`", "both"));
            }
        };
        check_number(name, n)?;
        for (name, value, of_list) in [
            ("return_documents", body.return_documents, false),
            ("return_text", body.return_text, true),
            ("raw_scores", body.raw_scores, true),
        ] {
            if value == Some(true) && of_list != is_list {
                let expected = if of_list { "`texts`" } else { "`documents`" };
                return Err(ApiError::field(name, &format!("false without {expected}"), true));
            }
        }
        Ok(body)
    }
}

impl RerankBody {
    /// Name of the model; `None`: the only one.
    #[must_use]
    pub fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    /// Requests of the engine, one for each document, and the form of their answer. `name` is that of the model in the answer.
    ///
    /// # Errors
    /// 400 if a document exceeds the context; 501 if the model has no tokens for both labels.
    pub fn prepare(
        self,
        llm: &Llm,
        name: &str,
        deadline: Option<Instant>,
    ) -> ApiResult<(Vec<Request>, RerankForm)> {
        let is_list = self.texts.is_some();
        let text = |document| match document {
            Document::Text(text) | Document::Object { text } => text,
        };
        let documents = self.documents.unwrap_or_default().into_iter().map(text);
        let documents: Vec<String> = documents.chain(self.texts.unwrap_or_default()).collect();
        let field = if is_list { "texts" } else { "documents" };
        let pairs = documents.iter().map(|document| Pair { query: &self.query, document });
        let requests = requests(llm, field, pairs, deadline)?;
        let form = RerankForm {
            model: name.to_owned(),
            is_list,
            has_texts: self.return_documents.or(self.return_text) == Some(true),
            is_raw: self.raw_scores == Some(true),
            top_n: self.top_n.unwrap_or(documents.len()),
            documents,
        };
        Ok((requests, form))
    }
}

impl RerankForm {
    /// Answer from the texts of all documents.
    ///
    /// # Errors
    /// 500 if a text has no probabilities.
    pub fn answer(mut self, texts: &[Completion]) -> ApiResult<RerankAnswer> {
        let margins = texts.iter().map(judge::margin).collect::<ApiResult<Vec<f64>>>()?;
        let mut order: Vec<usize> = (0..margins.len()).collect();
        order.sort_by(|&a, &b| margins[b].total_cmp(&margins[a]).then(a.cmp(&b)));
        order.truncate(self.top_n);
        let has_texts = self.has_texts;
        let mut text = |index: usize| has_texts.then(|| std::mem::take(&mut self.documents[index]));
        if self.is_list {
            let is_raw = self.is_raw;
            let score = |margin: f64| if is_raw { margin } else { judge::probability(margin) };
            let ranked = order.into_iter().map(|index| {
                let text = text(index);
                RankedText { index, score: score(margins[index]), text }
            });
            return Ok(RerankAnswer::List(ranked.collect()));
        }
        let ranked = order.into_iter().map(|index| {
            let document = text(index).map(|text| DocumentText { text });
            RankedDocument { index, relevance_score: judge::probability(margins[index]), document }
        });
        let (results, usage) = (ranked.collect(), usage(texts));
        Ok(RerankAnswer::Object { model: self.model, object: "list", usage, results })
    }
}
