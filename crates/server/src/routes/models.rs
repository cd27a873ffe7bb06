//! `/v1/models` and the management of models.

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::{get, post};
use chrono::{DateTime, SecondsFormat};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stonechat::ModelKind;
use stonechat::formats::Format;

use crate::{ApiError, AppState, HandlerResult, Json, ListedModel, ModelSpec};

pub(crate) fn router() -> Router<AppState> {
    Router::new()
        .route("/v1/models", get(list))
        .route("/models", get(list))
        .route("/v1/models/{model}", get(retrieve))
        .route("/models/load", post(load))
        .route("/models/unload", post(unload))
}

/// Models of the server
///
/// OpenAI's list in `data`, and one in the shape of Ollama in `models`. Neither wakes a model.
#[cfg_attr(test, utoipa::path(get, path = "/v1/models", tag = "models", responses(
    (status = 200, body = Object),
)))]
pub(crate) async fn list(State(state): State<AppState>) -> Json<Value> {
    let listed = state.models().list().await;
    let data: Vec<Value> = listed.iter().map(openai).collect();
    let models: Vec<Value> = listed.iter().map(ollama).collect();
    Json(json!({"models": models, "object": "list", "data": data}))
}

/// A model of the server
#[cfg_attr(test, utoipa::path(get, path = "/v1/models/{model}", tag = "models",
    params(("model" = String, Path, description = "Name")), responses(
    (status = 200, body = Object),
    (status = 404, description = "There is no model of this name"),
)))]
pub(crate) async fn retrieve(
    State(state): State<AppState>,
    Path(name): Path<String>,
) -> HandlerResult<Json<Value>> {
    let listed = state.models().list().await;
    let model = listed.iter().find(|model| model.spec.has_name(&name));
    let model = model.ok_or_else(|| ApiError::not_found(format!("model `{name}` not found")))?;
    Ok(Json(openai(model)))
}

/// Entry of `data`.
fn openai(model: &ListedModel) -> Value {
    let spec = &model.spec;
    let is_language = spec.kind == ModelKind::Language;
    let mut status = json!({"value": model.status.name()});
    if let Some(failure) = &model.failure {
        status["error"] = json!(failure);
    }
    json!({
        "id": spec.id(),
        "aliases": spec.aliases,
        "tags": spec.tags,
        "object": "model",
        "created": spec.created,
        "owned_by": "stonechat",
        "task": if is_language { "text-generation" } else { "automatic-speech-recognition" },
        "status": status,
        "meta": {
            "vocab_type": 0,
            "n_vocab": spec.n_vocab,
            "n_ctx": spec.n_ctx,
            "n_ctx_train": spec.n_ctx_train,
            "n_embd": spec.n_embd,
            "n_params": spec.n_params,
            "size": spec.size,
            "ftype": spec.weights,
        },
    })
}

/// Entry of `models`. What a server does not know of a file, such as its digest, is absent.
fn ollama(model: &ListedModel) -> Value {
    let spec = &model.spec;
    json!({
        "name": spec.id(),
        "model": spec.id(),
        "modified_at": rfc3339(spec.created),
        "size": spec.file_bytes,
        "type": "model",
        "description": "",
        "tags": spec.tags,
        "capabilities": capabilities(spec),
        "parameters": "",
        "details": {
            "parent_model": "",
            "format": format_name(spec.format),
            "family": spec.architecture,
            "families": [spec.architecture],
            "parameter_size": spec.n_params.to_string(),
            "quantization_level": spec.weights,
        },
    })
}

/// Capabilities of a model under Ollama's names.
pub(super) fn capabilities(spec: &ModelSpec) -> Vec<&'static str> {
    if spec.kind != ModelKind::Language {
        return vec!["audio", "transcription"];
    }
    let has = [
        ("completion", true),
        ("tools", spec.supports_tools),
        ("thinking", spec.supports_reasoning),
        ("insert", spec.supports_infill),
    ];
    has.into_iter().filter_map(|(name, has)| has.then_some(name)).collect()
}

/// Format of a file, under Ollama's name where it has one.
pub(super) fn format_name(format: Format) -> String {
    match format {
        Format::WhisperBin => "ggml".to_owned(),
        other => other.to_string().to_lowercase(),
    }
}

/// Date and time in UTC of seconds since 1970.
pub(super) fn rfc3339(seconds: u64) -> String {
    let time = i64::try_from(seconds).ok().and_then(|seconds| DateTime::from_timestamp(seconds, 0));
    time.unwrap_or_default().to_rfc3339_opts(SecondsFormat::Secs, true)
}

/// Body of `/models/load` and `/models/unload`.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub(crate) struct ModelBody {
    /// Name of the model.
    model: String,
}

/// Answer of `/models/load` and `/models/unload`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub(crate) struct Success {
    /// `true`.
    success: bool,
}

/// Starts to load a model
///
/// Answers at once; `/models` has the status.
#[cfg_attr(test, utoipa::path(post, path = "/models/load", tag = "models", request_body = ModelBody, responses(
    (status = 200, body = Success),
    (status = 400, description = "It is loaded"),
    (status = 404, description = "There is no model of this name"),
)))]
pub(crate) async fn load(
    State(state): State<AppState>,
    Json(body): Json<ModelBody>,
) -> HandlerResult<Json<Success>> {
    state.models().load(&body.model).await?;
    Ok(Json(Success { success: true }))
}

/// Unloads a model that no request uses
#[cfg_attr(test, utoipa::path(post, path = "/models/unload", tag = "models", request_body = ModelBody, responses(
    (status = 200, body = Success),
    (status = 400, description = "It is not loaded, or in use"),
    (status = 404, description = "There is no model of this name"),
)))]
pub(crate) async fn unload(
    State(state): State<AppState>,
    Json(body): Json<ModelBody>,
) -> HandlerResult<Json<Success>> {
    state.models().unload(&body.model).await?;
    Ok(Json(Success { success: true }))
}

#[cfg(test)]
mod tests {
    use super::rfc3339;

    #[test]
    fn times_are_in_utc() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_704_067_199, "2023-12-31T23:59:59Z"),
            (1_764_408_896, "2025-11-29T09:34:56Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(seconds), expected);
        }
    }
}
