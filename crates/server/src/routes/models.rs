//! `/v1/models` and the management of models.

use axum::extract::{Path, State};
use axum::routing::get;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stonechat::ModelKind;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::{ApiError, ApiResult, AppState, Json, ListedModel};

pub(crate) fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .route("/models", get(list))
        .routes(routes!(retrieve))
        .routes(routes!(load))
        .routes(routes!(unload))
}

/// Models of the server
///
/// OpenAI's list in `data`, and one in the shape of Ollama in `models`. Neither wakes a model.
#[utoipa::path(get, path = "/v1/models", tag = "models", responses(
    (status = 200, body = Object),
))]
async fn list(State(state): State<AppState>) -> Json<Value> {
    let listed = state.models().list().await;
    let data: Vec<Value> = listed.iter().map(openai).collect();
    let models: Vec<Value> = listed.iter().map(ollama).collect();
    Json(json!({"models": models, "object": "list", "data": data}))
}

/// A model of the server
#[utoipa::path(get, path = "/v1/models/{model}", tag = "models",
    params(("model" = String, Path, description = "Name")), responses(
    (status = 200, body = Object),
    (status = 404, description = "There is no model of this name"),
))]
async fn retrieve(
    State(state): State<AppState>,
    Path(name): Path<String>,
) -> ApiResult<Json<Value>> {
    let listed = state.models().list().await;
    let is_it =
        |model: &&ListedModel| model.spec.name == name || model.spec.aliases.contains(&name);
    let model = listed.iter().find(is_it);
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
        "id": spec.name,
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

/// Entry of `models`.
fn ollama(model: &ListedModel) -> Value {
    let spec = &model.spec;
    let capabilities = match spec.kind {
        ModelKind::Language => json!(["completion"]),
        _ => json!(["audio", "transcription"]),
    };
    json!({
        "name": spec.name,
        "model": spec.name,
        "modified_at": "",
        "size": spec.size.to_string(),
        "digest": "",
        "type": "model",
        "description": "",
        "tags": spec.tags,
        "capabilities": capabilities,
        "parameters": "",
        "details": {
            "parent_model": "",
            "format": "gguf",
            "family": "",
            "families": [""],
            "parameter_size": spec.n_params.to_string(),
            "quantization_level": spec.weights,
        },
    })
}

/// Body of `/models/load` and `/models/unload`.
#[derive(Debug, Deserialize, ToSchema)]
struct ModelBody {
    /// Name of the model.
    model: String,
}

/// Answer of `/models/load` and `/models/unload`.
#[derive(Debug, Serialize, ToSchema)]
struct Success {
    /// `true`.
    success: bool,
}

/// Starts to load a model
///
/// Answers at once; `/models` has the status.
#[utoipa::path(post, path = "/models/load", tag = "models", request_body = ModelBody, responses(
    (status = 200, body = Success),
    (status = 400, description = "It is loaded"),
    (status = 404, description = "There is no model of this name"),
))]
async fn load(
    State(state): State<AppState>,
    Json(body): Json<ModelBody>,
) -> ApiResult<Json<Success>> {
    state.models().load(&body.model).await?;
    Ok(Json(Success { success: true }))
}

/// Unloads a model that no request uses
#[utoipa::path(post, path = "/models/unload", tag = "models", request_body = ModelBody, responses(
    (status = 200, body = Success),
    (status = 400, description = "It is not loaded, or in use"),
    (status = 404, description = "There is no model of this name"),
))]
async fn unload(
    State(state): State<AppState>,
    Json(body): Json<ModelBody>,
) -> ApiResult<Json<Success>> {
    state.models().unload(&body.model).await?;
    Ok(Json(Success { success: true }))
}
