//! `/v1/rerank` in the forms of Jina and of Hugging Face's text-embeddings-inference, and vLLM's `/v1/score`.
//!
//! A pair of a query and a document is a chat whose answer is `yes` or `no`: its score is the softmax of both labels' logits
//! at the first token. Nothing else is generated.

mod judge;

use serde::{Deserialize, Serialize};
use stonechat::{Completion, Llm, Request};
use web_time::Instant;

use crate::ids::{new_id, unix_seconds};
use crate::json::{JsonFields, ParseBody};
use crate::{ApiError, ApiResult, Defaults};

use judge::{Judge, Pair};

/// Maximum documents or pairs of a request.
const MAX_PAIRS: usize = 1024;
/// Maximum tokens of all prompts of a request.
const MAX_PAIR_TOKENS: usize = 1 << 20;

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

/// Body of a request to score pairs.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ScoreBody {
    /// Name of the model.
    #[serde(default)]
    model: Option<String>,
    /// Query, or a query for each text of `text_2`.
    text_1: Texts,
    /// Document, or several.
    text_2: Texts,
}

/// A text or a list of texts.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(untagged, expecting = "expected a text or a list of texts")]
pub enum Texts {
    /// One text.
    One(String),
    /// Several texts.
    Several(Vec<String>),
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
        usage: PairUsage,
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

/// Tokens of the prompts of all pairs.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct PairUsage {
    prompt_tokens: usize,
    total_tokens: usize,
}

/// Form of the answer to a [`ScoreBody`].
#[derive(Debug)]
pub struct ScoreForm {
    model: String,
}

/// Answer to a [`ScoreBody`].
#[derive(Debug, Serialize)]
pub struct ScoreAnswer {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    data: Vec<PairScore>,
    usage: PairUsage,
}

/// Score of a pair.
#[derive(Debug, Serialize)]
struct PairScore {
    index: usize,
    object: &'static str,
    score: f64,
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
        let (results, usage) = (ranked.collect(), PairUsage::of(texts));
        Ok(RerankAnswer::Object { model: self.model, object: "list", usage, results })
    }
}

impl ParseBody for ScoreBody {
    fn parse(body: &[u8], defaults: &Defaults<'_>) -> ApiResult<Self> {
        let body: Self = JsonFields::parse_whole(body, defaults.max_choices)?;
        check_number("text_1", body.text_1.as_slice().len())?;
        check_number("text_2", body.text_2.as_slice().len())?;
        if let (Texts::Several(queries), documents) = (&body.text_1, body.text_2.as_slice())
            && queries.len() != documents.len()
        {
            let expected = format!("a text, or as many as `text_2`, which has {}", documents.len());
            return Err(ApiError::field("text_1", &expected, queries.len()));
        }
        Ok(body)
    }
}

impl ScoreBody {
    /// Name of the model; `None`: the only one.
    #[must_use]
    pub fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    /// Requests of the engine, one for each pair, and the form of their answer. `name` is that of the model in the answer.
    ///
    /// # Errors
    /// 400 if a pair exceeds the context; 501 if the model has no tokens for both labels.
    pub fn prepare(
        self,
        llm: &Llm,
        name: &str,
        deadline: Option<Instant>,
    ) -> ApiResult<(Vec<Request>, ScoreForm)> {
        let queries = self.text_1.as_slice().iter().cycle();
        let pairs = self.text_2.as_slice().iter().zip(queries);
        let pairs = pairs.map(|(document, query)| Pair { query, document });
        let requests = requests(llm, "text_2", pairs, deadline)?;
        Ok((requests, ScoreForm { model: name.to_owned() }))
    }
}

impl ScoreForm {
    /// Answer from the texts of all pairs.
    ///
    /// # Errors
    /// 500 if a text has no probabilities.
    pub fn answer(self, texts: &[Completion]) -> ApiResult<ScoreAnswer> {
        let score = |(index, text)| {
            let score = judge::probability(judge::margin(text)?);
            Ok(PairScore { index, object: "score", score })
        };
        Ok(ScoreAnswer {
            id: new_id("score-"),
            object: "list",
            created: unix_seconds(),
            model: self.model,
            data: texts.iter().enumerate().map(score).collect::<ApiResult<_>>()?,
            usage: PairUsage::of(texts),
        })
    }
}

impl Texts {
    fn as_slice(&self) -> &[String] {
        match self {
            Self::One(text) => std::slice::from_ref(text),
            Self::Several(texts) => texts,
        }
    }
}

impl PairUsage {
    fn of(texts: &[Completion]) -> Self {
        let prompt_tokens = texts.iter().map(|text| text.prompt_tokens).sum();
        Self { prompt_tokens, total_tokens: prompt_tokens }
    }
}

/// Checks the number of texts of a list, before any is tokenized.
fn check_number(name: &str, n: usize) -> ApiResult<()> {
    if (1..=MAX_PAIRS).contains(&n) {
        return Ok(());
    }
    Err(ApiError::field(name, &format!("1 to {MAX_PAIRS} texts"), n))
}

/// Requests for the labels of pairs, whose documents are the items of the field `name`.
fn requests<'a>(
    llm: &Llm,
    name: &str,
    pairs: impl Iterator<Item = Pair<'a>>,
    deadline: Option<Instant>,
) -> ApiResult<Vec<Request>> {
    let info = llm.info();
    let judge = Judge::new(info)?;
    let n_ctx = info.n_ctx.min(info.kv_tokens);
    let (mut requests, mut n_tokens) = (Vec::new(), 0);
    for (index, pair) in pairs.enumerate() {
        let request = judge.request(info, pair)?;
        let n = request.prompt.len();
        if n > n_ctx {
            let name = format!("{name}[{index}]");
            let expected = format!("at most {n_ctx} tokens with the query (nothing is truncated)");
            return Err(ApiError::field(&name, &expected, n));
        }
        n_tokens += n;
        if n_tokens > MAX_PAIR_TOKENS {
            let expected =
                format!("at most {MAX_PAIR_TOKENS} tokens, counting the query each time");
            return Err(ApiError::field(name, &expected, format!("more up to item {index}")));
        }
        requests.push(Request { deadline, ..request });
    }
    Ok(requests)
}
