//! Scores of pairs of texts: vLLM's `/v1/score`.

use serde::{Deserialize, Serialize};
use stonechat::{Completion, Llm, Request};
use web_time::Instant;

use super::judge::{self, Pair};
use super::pairs::{check_number, requests, usage};
use crate::ids::{new_id, unix_seconds};
use crate::input_usage::InputUsage;
use crate::json::{JsonFields, ParseBody};
use crate::{ApiError, ApiResult, Defaults};

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
    usage: InputUsage,
}

/// Score of a pair.
#[derive(Debug, Serialize)]
struct PairScore {
    index: usize,
    object: &'static str,
    score: f64,
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
            usage: usage(texts),
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
