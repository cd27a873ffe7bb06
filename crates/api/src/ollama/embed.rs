//! `/api/embed` and the older `/api/embeddings`.

use serde::Serialize;
use serde_json::{Map, Value};
use web_time::Instant;

use super::answer::nanoseconds;
use super::fields::{Fields, unloads};
use crate::embeddings::{EmbeddingsAnswer, EmbeddingsBody, EmbeddingsRequest};
use crate::json::{JsonFields, ParseBody};
use crate::limits::MAX_INPUTS;
use crate::{ApiError, ApiResult, Defaults, limits};

/// Body of a request for embeddings.
#[derive(Debug)]
pub struct EmbedBody {
    model: String,
    unloads: bool,
    /// Absent without an input, which loads the model.
    body: Option<EmbeddingsBody>,
    start: Instant,
}

/// Answer of `/api/embed`.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct EmbedAnswer {
    /// Name of the model.
    model: String,
    /// A vector for each input.
    embeddings: Vec<Vec<f32>>,
    /// Nanoseconds of the request.
    total_duration: u64,
    /// Nanoseconds of the load; 0: it is a part of the total.
    load_duration: u64,
    /// Tokens of the inputs.
    prompt_eval_count: usize,
}

/// Answer of `/api/embeddings`.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct EmbeddingAnswer {
    /// Vector of the prompt.
    embedding: Vec<f32>,
}

impl ParseBody for EmbedBody {
    fn parse(body: &[u8], defaults: &Defaults<'_>) -> ApiResult<Self> {
        let mut is_unloaded = false;
        let mut body = JsonFields::parse(body, defaults.max_choices, |body| {
            is_unloaded = adapt(body)?;
            Ok(())
        })?;
        let own: EmbeddingsBody = body.take()?;
        limits::check_items("input", own.input(), MAX_INPUTS)?;
        let model = own.model().unwrap_or_default().to_owned();
        if model.is_empty() {
            return Err(ApiError::field("model", "the name of a model", "none"));
        }
        let is_empty = match own.input() {
            Value::Null => true,
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            _ => false,
        };
        let body = (!is_empty).then_some(own);
        Ok(Self { model, unloads: is_unloaded, body, start: Instant::now() })
    }
}

/// Rewrites a body to OpenAI's fields; returns whether the model is unloaded afterwards. `prompt` is the field of the older
/// route, which clients send to the newer one as well.
fn adapt(body: &mut Map<String, Value>) -> ApiResult<bool> {
    let mut fields = Fields::new(body);
    let unloads = unloads(fields.take("keep_alive").as_ref())?;
    let input = fields.take("input");
    let input = input.or(fields.take("prompt")).unwrap_or_default();
    body.insert("input".to_owned(), input);
    for name in ["model", "dimensions"] {
        body.extend(fields.take(name).map(|value| (name.to_owned(), value)));
    }
    Ok(unloads)
}

impl EmbedBody {
    /// Name of the model.
    #[must_use]
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Whether the model is unloaded afterwards.
    #[must_use]
    pub fn unloads(&self) -> bool {
        self.unloads
    }

    /// Start of the request.
    #[must_use]
    pub fn start(&self) -> Instant {
        self.start
    }

    /// Request for the vectors; `None` without an input.
    ///
    /// # Errors
    /// 400 with the field, or if the default pooling is none.
    pub fn request(self, defaults: &Defaults<'_>) -> ApiResult<Option<EmbeddingsRequest>> {
        self.body.map(|body| body.openai(defaults)).transpose()
    }
}

impl EmbedAnswer {
    /// Answer of a request that began at `start`; without an input it has no vectors.
    #[must_use]
    pub fn new(
        model: &str,
        answer: Option<&EmbeddingsAnswer>,
        vectors: &[Vec<f32>],
        start: Instant,
    ) -> Self {
        Self {
            model: model.to_owned(),
            embeddings: answer.map_or_else(Vec::new, |answer| answer.vectors(vectors)),
            total_duration: nanoseconds(start.elapsed()),
            load_duration: 0,
            prompt_eval_count: answer.map_or(0, EmbeddingsAnswer::n_tokens),
        }
    }

    /// The same in the form of the older route: the first vector.
    #[must_use]
    pub fn into_first(self) -> EmbeddingAnswer {
        let embedding = self.embeddings.into_iter().next().unwrap_or_default();
        EmbeddingAnswer { embedding }
    }
}
