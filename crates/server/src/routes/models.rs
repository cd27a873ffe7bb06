//! `/v1/models` and the management of models.

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::{get, post};
use chrono::{DateTime, SecondsFormat};
use serde::{Deserialize, Serialize};
use stonechat::ModelKind;
use stonechat::formats::Format;

use super::Success;
use crate::{ApiError, AppState, HandlerResult, Json, ListedModel, ModelSpec};

pub(crate) fn router() -> Router<AppState> {
    Router::new()
        .route("/v1/models", get(list))
        .route("/models", get(list))
        .route("/v1/models/{model}", get(retrieve))
        .route("/models/load", post(load))
        .route("/models/unload", post(unload))
}

/// Lists of models in two forms.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub(crate) struct ModelLists {
    /// In the form of Ollama.
    models: Vec<OllamaEntry>,
    object: &'static str,
    /// In the form of OpenAI.
    data: Vec<ModelEntry>,
}

/// Model in the form of OpenAI.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub(crate) struct ModelEntry {
    id: String,
    aliases: Vec<String>,
    tags: Vec<String>,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    task: &'static str,
    status: EntryStatus,
    meta: EntryMeta,
}

/// State of a model.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
struct EntryStatus {
    /// `unloaded`, `loading`, `loaded`, `sleeping` or `failed`.
    value: &'static str,
    /// Reason why the last load failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Sizes of a model.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
struct EntryMeta {
    vocab_type: usize,
    n_vocab: usize,
    n_ctx: usize,
    n_ctx_train: usize,
    n_embd: usize,
    n_params: u64,
    size: u64,
    ftype: String,
}

/// Model in the form of Ollama. What a server does not know of a file, such as its digest, is absent.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
struct OllamaEntry {
    name: String,
    model: String,
    modified_at: String,
    size: u64,
    #[serde(rename = "type")]
    kind: &'static str,
    description: &'static str,
    tags: Vec<String>,
    capabilities: Vec<&'static str>,
    parameters: &'static str,
    details: OllamaDetails,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
struct OllamaDetails {
    parent_model: &'static str,
    format: String,
    family: &'static str,
    families: [&'static str; 1],
    parameter_size: String,
    quantization_level: String,
}

/// Models of the server
///
/// OpenAI's list in `data`, and one in the shape of Ollama in `models`. Neither wakes a model.
#[cfg_attr(test, utoipa::path(get, path = "/v1/models", tag = "models", responses(
    (status = 200, body = ModelLists),
)))]
pub(crate) async fn list(State(state): State<AppState>) -> Json<ModelLists> {
    let listed = state.models().list().await;
    let models = listed.iter().map(|model| OllamaEntry::of(&model.spec));
    let data = listed.iter().map(ModelEntry::of);
    Json(ModelLists { models: models.collect(), object: "list", data: data.collect() })
}

/// A model of the server
#[cfg_attr(test, utoipa::path(get, path = "/v1/models/{model}", tag = "models",
    params(("model" = String, Path, description = "Name")), responses(
    (status = 200, body = ModelEntry),
    (status = 404, description = "There is no model of this name"),
)))]
pub(crate) async fn retrieve(
    State(state): State<AppState>,
    Path(name): Path<String>,
) -> HandlerResult<Json<ModelEntry>> {
    let listed = state.models().list().await;
    let model = listed.iter().find(|model| model.spec.has_name(&name));
    let model = model.ok_or_else(|| ApiError::not_found(format!("model `{name}` not found")))?;
    Ok(Json(ModelEntry::of(model)))
}

impl ModelEntry {
    fn of(model: &ListedModel) -> Self {
        let spec = &model.spec;
        let is_language = spec.kind == ModelKind::Language;
        Self {
            id: spec.id().to_owned(),
            aliases: spec.aliases.clone(),
            tags: spec.tags.clone(),
            object: "model",
            created: spec.created,
            owned_by: "stonechat",
            task: if is_language { "text-generation" } else { "automatic-speech-recognition" },
            status: EntryStatus { value: model.status.name(), error: model.failure.clone() },
            meta: EntryMeta {
                vocab_type: 0,
                n_vocab: spec.n_vocab,
                n_ctx: spec.n_ctx,
                n_ctx_train: spec.n_ctx_train,
                n_embd: spec.n_embd,
                n_params: spec.n_params,
                size: spec.size,
                ftype: spec.weights.clone(),
            },
        }
    }
}

impl OllamaEntry {
    fn of(spec: &ModelSpec) -> Self {
        Self {
            name: spec.id().to_owned(),
            model: spec.id().to_owned(),
            modified_at: rfc3339(spec.created),
            size: spec.file_bytes,
            kind: "model",
            description: "",
            tags: spec.tags.clone(),
            capabilities: capabilities(spec),
            parameters: "",
            details: OllamaDetails {
                parent_model: "",
                format: format_name(spec.format),
                family: spec.architecture,
                families: [spec.architecture],
                parameter_size: spec.n_params.to_string(),
                quantization_level: spec.weights.clone(),
            },
        }
    }
}

/// Capabilities of a model under Ollama's names.
pub(super) fn capabilities(spec: &ModelSpec) -> Vec<&'static str> {
    if spec.kind != ModelKind::Language {
        return vec!["audio", "transcription"];
    }
    if spec.is_embedder {
        // As in Ollama, it completes no texts.
        return vec!["embedding"];
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
    Ok(Json(Success::new()))
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
    Ok(Json(Success::new()))
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
