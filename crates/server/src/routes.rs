//! Routes: one file for each group, with a function `router` that [`app`](crate::router) merges.
//!
//! | file | routes |
//! |---|---|
//! | `health` | `/health` |
//! | `models` | `/v1/models`, `/models`, `/models/load`, `/models/unload` |
//! | `props` | `/props` |
//! | `metrics` | `/metrics` |
//! | `tokenize` | `/tokenize`, `/detokenize` |
//! | `template` | `/apply-template`, `/v1/chat/completions/input_tokens` |
//! | `lora` | `/lora-adapters` |
//! | `chat` | `/v1/chat/completions` |
//! | `control` | `/v1/chat/completions/control` |
//! | `anthropic` | `/v1/messages`, `/v1/messages/count_tokens` |
//! | `responses` | `/v1/responses` and those kept |
//! | `completions` | `/v1/completions` |
//! | `completion` | `/completion`, `/infill` |
//! | `slots` | `/slots` |
//! | `embeddings` | `/v1/embeddings`, `/embedding` |
//! | `ollama` | `/api/chat`, `/api/generate`, `/api/embed`, `/api/embeddings` |
//! | `ollama_models` | `/api/version`, `/api/tags`, `/api/ps`, `/api/show` |
//! | `ollama_manage` | `/api/pull`, `/api/delete` |
//! | `audio` | `/v1/audio/transcriptions`, `/v1/audio/translations`, `/asr`, `/detect-language` |
//! | `realtime` | `/v1/realtime` |
//! | `client_secrets` | `/v1/realtime/client_secrets` |
//! | `rerank` | `/v1/rerank`, `/v1/score` |
//! | `page` | `/`, `/web/` |

pub(crate) mod anthropic;
pub(crate) mod audio;
pub(crate) mod chat;
pub(crate) mod client_secrets;
pub(crate) mod completion;
pub(crate) mod completions;
pub(crate) mod control;
pub(crate) mod embeddings;
pub(crate) mod health;
pub(crate) mod lora;
pub(crate) mod metrics;
pub(crate) mod models;
pub(crate) mod ollama;
pub(crate) mod ollama_manage;
pub(crate) mod ollama_models;
pub(crate) mod page;
pub(crate) mod props;
pub(crate) mod realtime;
pub(crate) mod rerank;
pub(crate) mod responses;
pub(crate) mod slots;
pub(crate) mod template;
pub(crate) mod tokenize;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{AppState, ErrorResponse, HandlerResult};

/// Query parameters, whose errors have the shape of the API.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned + Send> FromRequestParts<AppState> for Query<T> {
    type Rejection = ErrorResponse;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> HandlerResult<Self> {
        let query = axum::extract::Query::from_request_parts(parts, state).await?;
        Ok(Self(query.0))
    }
}

/// Answer of a route that has done its work.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub(crate) struct Success {
    /// `true`.
    success: bool,
}

impl Success {
    pub(crate) fn new() -> Self {
        Self { success: true }
    }
}

/// The parameter `model` of a `GET`.
#[derive(Debug, Clone, Default, Deserialize)]
#[cfg_attr(test, derive(utoipa::IntoParams))]
pub(crate) struct ModelQuery {
    /// Name of the model; not needed if there is only one.
    pub(crate) model: Option<String>,
}
