//! `/v1/embeddings` and llama-server's `/embedding`.

use axum::Router;
use axum::extract::State;
use axum::response::IntoResponse;
use axum::response::Response;
use axum::routing::post;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};
use stonechat::Llm;
use stonechat::llm::{Norm, Pooling, normalize};

use crate::json::{JsonFields, kind_of};
use crate::limits::{MAX_INPUTS, check_items};
use crate::tasks::{blocking, within};
use crate::{ApiError, ApiResult, AppState, Json, LanguageGuard};

pub(crate) fn router() -> Router<AppState> {
    Router::new()
        .route("/v1/embeddings", post(embeddings))
        .route("/embedding", post(embedding))
        .route("/embeddings", post(embedding))
}

/// Body of an embeddings request.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
struct EmbeddingsBody {
    /// Name of the model.
    #[serde(default)]
    model: Option<String>,
    /// A text, a list of texts, token ids, or lists of them.
    #[serde(alias = "content")]
    #[cfg_attr(test, schema(value_type = Object))]
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

/// Vectors of a request.
struct Embedded {
    vectors: Vec<Vec<f32>>,
    /// Values of a vector.
    width: usize,
    n_tokens: usize,
    model: String,
}

/// Embeds texts
#[cfg_attr(test, utoipa::path(post, path = "/v1/embeddings", tag = "text", request_body = EmbeddingsBody, responses(
    (status = 200, body = Object, description = "A `list` of `embedding`"),
    (status = 400, description = "A field is invalid, or a text exceeds the context"),
)))]
pub(crate) async fn embeddings(
    State(state): State<AppState>,
    body: JsonFields,
) -> ApiResult<Response> {
    let body = read(body)?;
    let is_base64 = match body.encoding_format.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(other) => {
            return Err(ApiError::field(
                "encoding_format",
                "`float` or `base64`",
                format!("`{other}`"),
            ));
        }
    };
    if state.options().pooling == Some(Pooling::None) {
        return Err(ApiError::bad_request(
            "pooling `none` gives one vector a token, which this route cannot return: use `/embedding`, or start the server with another `--pooling`",
        ));
    }
    let embedded = embed(&state, &body).await?;
    let encode = |vector: &Vec<f32>| {
        if is_base64 {
            let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
            json!(BASE64_STANDARD.encode(bytes))
        } else {
            json!(vector)
        }
    };
    let data = embedded.vectors.iter().enumerate().map(|(index, vector)| {
        json!({"object": "embedding", "index": index, "embedding": encode(vector)})
    });
    let answer = json!({
        "object": "list",
        "data": data.collect::<Vec<_>>(),
        "model": embedded.model,
        "usage": {"prompt_tokens": embedded.n_tokens, "total_tokens": embedded.n_tokens},
    });
    Ok(Json(answer).into_response())
}

/// Embeds texts, in llama-server's shape: a list of vectors a text
#[cfg_attr(test, utoipa::path(post, path = "/embedding", tag = "text", request_body = EmbeddingsBody, responses(
    (status = 200, body = Object, description = "A list of `{index, embedding}`"),
)))]
pub(crate) async fn embedding(
    State(state): State<AppState>,
    body: JsonFields,
) -> ApiResult<Json<Value>> {
    let body = read(body)?;
    let embedded = embed(&state, &body).await?;
    let rows = embedded.vectors.iter().enumerate().map(|(index, values)| {
        let rows: Vec<&[f32]> = values.chunks(embedded.width.max(1)).collect();
        json!({"index": index, "embedding": rows})
    });
    Ok(Json(rows.collect::<Vec<_>>().into()))
}

/// Reads a body.
fn read(mut fields: JsonFields) -> ApiResult<EmbeddingsBody> {
    let body = fields.take::<EmbeddingsBody>();
    fields.check_rest()?;
    let body = body?;
    check_items("input", &body.input, MAX_INPUTS)?;
    Ok(body)
}

async fn embed(state: &AppState, body: &EmbeddingsBody) -> ApiResult<Embedded> {
    let norm = match body.embd_normalize.unwrap_or(2) {
        -1 => None,
        0 => Some(Norm::Max16Bit),
        p if p > 0 => Some(Norm::P(p as f32)),
        p => return Err(ApiError::field("embd_normalize", "-1 or more", p)),
    };
    let deadline = state.options().deadline();
    let model = state.open::<Llm>(body.model.as_deref(), deadline).await?;
    let info = model.info();
    let d_model = info.model.config().d_model;
    let width = match body.dimensions {
        None => d_model,
        Some(n) if (1..=d_model).contains(&n) => n,
        Some(n) => return Err(ApiError::field("dimensions", &format!("1 to {d_model}"), n)),
    };
    let inputs = inputs(&body.input, &model)?;
    if let Some(n) = inputs.iter().map(Vec::len).find(|&n| n > info.n_ctx.min(info.kv_tokens)) {
        return Err(ApiError::context_overflow(n, info.n_ctx.min(info.kv_tokens)));
    }
    let n_tokens = inputs.iter().map(Vec::len).sum();
    let pooling = state.options().pooling.or(info.model.config().pooling).unwrap_or(Pooling::Mean);
    let vectors = within(deadline, model.embed(inputs, pooling)).await??;
    let vectors = vectors.into_iter().map(|values| {
        let rows = values.chunks(d_model).flat_map(|row| {
            let mut row = row[..width].to_vec();
            if let Some(norm) = norm {
                normalize(&mut row, norm);
            }
            row
        });
        rows.collect()
    });
    Ok(Embedded {
        vectors: vectors.collect(),
        width,
        n_tokens,
        model: model.name_for(body.model.as_deref()),
    })
}

/// Tokens of each input.
fn inputs(input: &Value, model: &LanguageGuard) -> ApiResult<Vec<Vec<u32>>> {
    let info = &model.info().model;
    let one = |value: &Value, name: &str| match value {
        Value::String(text) => {
            let tokens = info.tokenizer().tokenize(text, true, true);
            if tokens.is_empty() {
                return Err(ApiError::field(name, "at least one token", "an empty text"));
            }
            Ok(tokens)
        }
        Value::Array(ids) if !ids.is_empty() => {
            let n = info.config().vocab_size;
            let id = |value: &Value| {
                let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
                id.filter(|&id| (id as usize) < n)
                    .ok_or_else(|| ApiError::field(name, &format!("token ids below {n}"), value))
            };
            ids.iter().map(id).collect()
        }
        other => Err(ApiError::field(name, "a text or a list of token ids", kind_of(other))),
    };
    blocking(|| match input {
        Value::Array(items) if items.is_empty() => {
            Err(ApiError::field("input", "at least one text", "an empty list"))
        }
        Value::Array(items) if !items.iter().all(Value::is_number) => {
            let items = items.iter().enumerate();
            items.map(|(i, item)| one(item, &format!("input[{i}]"))).collect()
        }
        input => Ok(vec![one(input, "input")?]),
    })
}
