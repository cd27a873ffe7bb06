//! `/v1/embeddings` of OpenAI and `/embedding` of llama-server.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stonechat::LlmInfo;
use stonechat::llm::{ModelInfo, Norm, Pooling, normalize};

use crate::frame::Frame;
use crate::input_usage::InputUsage;
use crate::json::{JsonFields, ParseBody, kind_of};
use crate::limits::{MAX_INPUTS, check_items};
use crate::{ApiError, ApiResult, Defaults};

/// Body of an embeddings request.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct EmbeddingsBody {
    /// Name of the model.
    #[serde(default)]
    model: Option<String>,
    /// A text, a list of texts, token ids, or lists of them.
    #[serde(alias = "content")]
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    input: Value,
    /// `float` or `base64`.
    #[serde(default)]
    encoding_format: Option<String>,
    /// Length to which the vectors are cut, before they are normalized.
    #[serde(default)]
    dimensions: Option<usize>,
    /// Norm: -1 none, 0 maximum at 32760, 1 or more the p-norm; default 2.
    #[serde(default)]
    embd_normalize: Option<i32>,
}

/// Shape of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// OpenAI's, with lists of numbers.
    Floats,
    /// OpenAI's, with little-endian f32 in base64.
    Base64,
    /// llama-server's: a list of vectors a text.
    Rows,
}

/// Request for embeddings whose fields have been checked.
#[derive(Debug)]
pub struct EmbeddingsRequest {
    body: EmbeddingsBody,
    shape: Shape,
    norm: Option<Norm>,
}

/// Inputs of the engine, and the answer to their vectors.
#[derive(Debug)]
pub struct PreparedEmbeddings {
    /// Tokens of each input.
    pub inputs: Vec<Vec<u32>>,
    /// Pooling.
    pub pooling: Pooling,
    /// Answer.
    pub answer: EmbeddingsAnswer,
}

/// Writer of the answer to a request for embeddings.
#[derive(Debug)]
pub struct EmbeddingsAnswer {
    shape: Shape,
    norm: Option<Norm>,
    d_model: usize,
    /// Values of a vector.
    width: usize,
    n_tokens: usize,
    model: String,
}

/// OpenAI's answer.
#[derive(Debug, Serialize)]
struct EmbeddingList<'a> {
    object: &'static str,
    data: Vec<Embedding>,
    model: &'a str,
    usage: InputUsage,
}

/// Vector of a text.
#[derive(Debug, Serialize)]
struct Embedding {
    object: &'static str,
    index: usize,
    embedding: Vector,
}

/// Values of a vector.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Vector {
    Floats(Vec<f32>),
    Base64(String),
}

/// Vectors of a text in llama-server's answer.
#[derive(Debug, Serialize)]
struct EmbeddingRows<'a> {
    index: usize,
    embedding: Vec<&'a [f32]>,
}

impl ParseBody for EmbeddingsBody {
    fn parse(body: &[u8], defaults: &Defaults<'_>) -> ApiResult<Self> {
        let body: Self = JsonFields::parse_whole(body, defaults.max_choices)?;
        check_items("input", &body.input, MAX_INPUTS)?;
        Ok(body)
    }
}

impl EmbeddingsBody {
    /// Name of the model.
    pub(crate) fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    /// Texts or tokens.
    pub(crate) fn input(&self) -> &Value {
        &self.input
    }

    /// Request of OpenAI's route.
    ///
    /// # Errors
    /// 400 with the field, or if the default pooling is none.
    pub fn openai(self, defaults: &Defaults<'_>) -> ApiResult<EmbeddingsRequest> {
        let shape = match self.encoding_format.as_deref() {
            None | Some("float") => Shape::Floats,
            Some("base64") => Shape::Base64,
            Some(other) => {
                let expected = "`float` or `base64`";
                return Err(ApiError::field("encoding_format", expected, format!("`{other}`")));
            }
        };
        if defaults.pooling == Some(Pooling::None) {
            return Err(ApiError::bad_request(
                "pooling `none` gives one vector a token, which this route cannot return: use `/embedding`, or start the server with another `--pooling`",
            ));
        }
        self.request(shape)
    }

    /// Request of llama-server's route.
    ///
    /// # Errors
    /// 400 with the field.
    pub fn native(self) -> ApiResult<EmbeddingsRequest> {
        self.request(Shape::Rows)
    }

    fn request(self, shape: Shape) -> ApiResult<EmbeddingsRequest> {
        let norm = match self.embd_normalize.unwrap_or(2) {
            -1 => None,
            0 => Some(Norm::Max16Bit),
            p if p > 0 => Some(Norm::P(p as f32)),
            p => return Err(ApiError::field("embd_normalize", "-1 or more", p)),
        };
        Ok(EmbeddingsRequest { body: self, shape, norm })
    }
}

impl EmbeddingsRequest {
    /// Name of the model; `None`: the only one.
    #[must_use]
    pub fn model(&self) -> Option<&str> {
        self.body.model.as_deref()
    }

    /// Tokenizes the inputs. `name` is that of the model in the answer.
    ///
    /// # Errors
    /// 400 with the field, or if an input exceeds the context.
    pub fn prepare(
        self,
        info: &LlmInfo,
        name: &str,
        defaults: &Defaults<'_>,
    ) -> ApiResult<PreparedEmbeddings> {
        let Self { body, shape, norm } = self;
        let d_model = info.model.config().d_model;
        let width = match body.dimensions {
            None => d_model,
            Some(n) if (1..=d_model).contains(&n) => n,
            Some(n) => return Err(ApiError::field("dimensions", &format!("1 to {d_model}"), n)),
        };
        let inputs = inputs(&body.input, &info.model)?;
        let n_ctx = info.n_ctx.min(info.kv_tokens);
        if let Some(n) = inputs.iter().map(Vec::len).find(|&n| n > n_ctx) {
            return Err(ApiError::context_overflow(n, n_ctx));
        }
        let n_tokens = inputs.iter().map(Vec::len).sum();
        let pooling = defaults.pooling.or(info.model.config().pooling).unwrap_or(Pooling::Mean);
        let model = name.to_owned();
        let answer = EmbeddingsAnswer { shape, norm, d_model, width, n_tokens, model };
        Ok(PreparedEmbeddings { inputs, pooling, answer })
    }
}

impl EmbeddingsAnswer {
    /// The answer from the vectors of all inputs: `[D]` each, `[T, D]` without pooling.
    #[must_use]
    pub fn whole(&self, vectors: &[Vec<f32>]) -> Frame {
        let vectors = self.vectors(vectors);
        if self.shape == Shape::Rows {
            let rows = vectors.iter().enumerate().map(|(index, values)| EmbeddingRows {
                index,
                embedding: values.chunks(self.width.max(1)).collect(),
            });
            return Frame::new(&rows.collect::<Vec<_>>());
        }
        let data = vectors.into_iter().enumerate().map(|(index, vector)| Embedding {
            object: "embedding",
            index,
            embedding: self.encode(vector),
        });
        Frame::new(&EmbeddingList {
            object: "list",
            data: data.collect(),
            model: &self.model,
            usage: InputUsage::new(self.n_tokens),
        })
    }

    /// Vectors of the wanted length and norm, from those of all inputs.
    #[must_use]
    pub fn vectors(&self, vectors: &[Vec<f32>]) -> Vec<Vec<f32>> {
        vectors.iter().map(|values| self.cut(values)).collect()
    }

    /// Tokens of all inputs.
    #[must_use]
    pub fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// Vectors of the wanted length and norm.
    fn cut(&self, values: &[f32]) -> Vec<f32> {
        let rows = values.chunks(self.d_model).flat_map(|row| {
            let mut row = row[..self.width].to_vec();
            if let Some(norm) = self.norm {
                normalize(&mut row, norm);
            }
            row
        });
        rows.collect()
    }

    fn encode(&self, vector: Vec<f32>) -> Vector {
        if self.shape == Shape::Base64 {
            let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
            Vector::Base64(BASE64_STANDARD.encode(bytes))
        } else {
            Vector::Floats(vector)
        }
    }
}

/// Tokens of each input.
fn inputs(input: &Value, model: &ModelInfo) -> ApiResult<Vec<Vec<u32>>> {
    let one = |value: &Value, name: &str| match value {
        Value::String(text) => {
            let tokens = model.tokenizer().tokenize(text, true, true);
            if tokens.is_empty() {
                return Err(ApiError::field(name, "at least one token", "an empty text"));
            }
            Ok(tokens)
        }
        Value::Array(ids) if !ids.is_empty() => {
            let n = model.config().vocab_size;
            let id = |value: &Value| {
                let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
                id.filter(|&id| (id as usize) < n)
                    .ok_or_else(|| ApiError::field(name, &format!("token ids below {n}"), value))
            };
            ids.iter().map(id).collect()
        }
        other => Err(ApiError::field(name, "a text or a list of token ids", kind_of(other))),
    };
    match input {
        Value::Array(items) if items.is_empty() => {
            Err(ApiError::field("input", "at least one text", "an empty list"))
        }
        Value::Array(items) if !items.iter().all(Value::is_number) => {
            let items = items.iter().enumerate();
            items.map(|(i, item)| one(item, &format!("input[{i}]"))).collect()
        }
        input => Ok(vec![one(input, "input")?]),
    }
}
