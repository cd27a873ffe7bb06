//! Models in Ollama's form: `/api/version`, `/api/tags`, `/api/ps`, `/api/show`; `/api/copy`, `/api/create` and `/api/push`, which
//! are refused.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::State;
use axum::routing::{get, post};
use serde::{Deserialize, Serialize};

use super::models::{capabilities, format_name, rfc3339};
use crate::{ApiError, AppState, ErrorResponse, HandlerResult, Json, ModelSpec, ModelStatus};

/// Version of Ollama whose routes these are. Clients compare its numbers.
const VERSION: &str = "0.14.0";
/// Time for which a model stays open without an idle time.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

pub(crate) fn router() -> Router<AppState> {
    Router::new()
        .route("/api/version", get(version))
        .route("/api/tags", get(tags))
        .route("/api/ps", get(ps))
        .route("/api/show", post(show))
        .route("/api/copy", post(copy))
        .route("/api/create", post(create))
        .route("/api/push", post(push))
}

/// Answer of `/api/version`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub(crate) struct Version {
    /// Three numbers.
    version: &'static str,
}

/// Version of Ollama's API
#[cfg_attr(test, utoipa::path(get, path = "/api/version", tag = "ollama", responses((status = 200, body = Version))))]
pub(crate) async fn version() -> Json<Version> {
    Json(Version { version: VERSION })
}

/// Answer of `/api/tags` and `/api/ps`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub(crate) struct OllamaModels {
    models: Vec<OllamaModel>,
}

/// Model of a list.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
struct OllamaModel {
    name: String,
    model: String,
    modified_at: String,
    size: u64,
    /// Hash of name, size and time of the file: not of its contents.
    digest: String,
    details: ModelDetails,
    capabilities: Vec<&'static str>,
    /// Only for a loaded model, as are the following.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size_vram: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    context_length: Option<usize>,
}

/// `details` of a model.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
struct ModelDetails {
    parent_model: &'static str,
    format: String,
    family: &'static str,
    families: [&'static str; 1],
    parameter_size: String,
    quantization_level: String,
    context_length: usize,
    embedding_length: usize,
}

/// Answer of `/api/show`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub(crate) struct ShownModel {
    license: &'static str,
    modelfile: &'static str,
    parameters: &'static str,
    template: String,
    details: ModelDetails,
    #[cfg_attr(test, schema(value_type = Object))]
    model_info: BTreeMap<String, Info>,
    capabilities: Vec<&'static str>,
    modified_at: String,
}

/// Value of `model_info`.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Info {
    Text(String),
    Number(u64),
}

/// Body that names a model.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub(crate) struct NamedBody {
    /// Name of the model.
    #[serde(default)]
    model: String,
    /// The same under its older name.
    #[serde(default)]
    name: String,
    /// Whether the answer of a pull is a stream; default true.
    pub(super) stream: Option<bool>,
}

impl NamedBody {
    /// Name of the model.
    pub(super) fn model(&self) -> Result<&str, ApiError> {
        let names = [self.model.as_str(), self.name.as_str()];
        let name = names.into_iter().find(|name| !name.is_empty());
        name.ok_or_else(|| ApiError::field("model", "the name of a model", "none"))
    }
}

impl ModelDetails {
    fn of(spec: &ModelSpec) -> Self {
        Self {
            parent_model: "",
            format: format_name(spec.format),
            family: spec.architecture,
            families: [spec.architecture],
            parameter_size: parameter_size(spec.n_params),
            quantization_level: spec.weights.clone(),
            context_length: spec.n_ctx,
            embedding_length: spec.n_embd,
        }
    }
}

impl OllamaModel {
    fn of(spec: &ModelSpec) -> Self {
        Self {
            name: spec.id().to_owned(),
            model: spec.id().to_owned(),
            modified_at: rfc3339(spec.created),
            size: spec.file_bytes,
            digest: digest(spec),
            details: ModelDetails::of(spec),
            capabilities: capabilities(spec),
            expires_at: None,
            size_vram: None,
            context_length: None,
        }
    }
}

/// 64 hexadecimal digits, of which clients show the first twelve.
fn digest(spec: &ModelSpec) -> String {
    let part = |salt: u64| {
        let mut hasher = DefaultHasher::new();
        (salt, &spec.name, spec.file_bytes, spec.created).hash(&mut hasher);
        format!("{:016x}", hasher.finish())
    };
    (0..4).map(part).collect()
}

/// Number of weights as `135M` or `8.0B`.
fn parameter_size(n: u64) -> String {
    let n = n as f64;
    match n {
        _ if n >= 1e9 => format!("{:.1}B", n / 1e9),
        _ if n >= 1e6 => format!("{:.0}M", n / 1e6),
        _ => format!("{:.0}K", n / 1e3),
    }
}

/// Models of the server in Ollama's form
#[cfg_attr(test, utoipa::path(get, path = "/api/tags", tag = "ollama", responses((status = 200, body = OllamaModels))))]
pub(crate) async fn tags(State(state): State<AppState>) -> Json<OllamaModels> {
    let listed = state.models().list().await;
    let models = listed.iter().map(|model| OllamaModel::of(&model.spec));
    Json(OllamaModels { models: models.collect() })
}

/// Loaded models in Ollama's form
#[cfg_attr(test, utoipa::path(get, path = "/api/ps", tag = "ollama", responses((status = 200, body = OllamaModels))))]
pub(crate) async fn ps(State(state): State<AppState>) -> Json<OllamaModels> {
    let idle = state.options().sleep_idle.unwrap_or(FOREVER);
    let end = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() + idle;
    let listed = state.models().list().await;
    let loaded = listed.iter().filter(|model| model.status == ModelStatus::Loaded);
    let models = loaded.map(|model| OllamaModel {
        size: model.spec.memory_bytes + model.spec.gpu_memory_bytes,
        expires_at: Some(rfc3339(end.as_secs())),
        size_vram: Some(model.spec.gpu_memory_bytes),
        context_length: Some(model.spec.n_ctx),
        ..OllamaModel::of(&model.spec)
    });
    Json(OllamaModels { models: models.collect() })
}

/// A model in Ollama's form
///
/// `verbose` has no effect: the vocabulary and the tensors are left out.
#[cfg_attr(test, utoipa::path(post, path = "/api/show", tag = "ollama", request_body = NamedBody, responses(
    (status = 200, body = ShownModel),
    (status = 404, description = "There is no model of this name"),
)))]
pub(crate) async fn show(
    State(state): State<AppState>,
    Json(body): Json<NamedBody>,
) -> HandlerResult<Json<ShownModel>> {
    let spec = state.models().named(body.model()?).await?;
    let arch = spec.architecture;
    let text = |text: &str| Info::Text(text.to_owned());
    let number = |n: usize| Info::Number(n as u64);
    let model_info = BTreeMap::from([
        ("general.architecture".to_owned(), text(arch)),
        ("general.basename".to_owned(), text(spec.id())),
        ("general.parameter_count".to_owned(), Info::Number(spec.n_params)),
        ("general.file_type".to_owned(), text(&spec.weights)),
        (format!("{arch}.context_length"), number(spec.n_ctx)),
        (format!("{arch}.embedding_length"), number(spec.n_embd)),
        (format!("{arch}.vocab_size"), number(spec.n_vocab)),
    ]);
    Ok(Json(ShownModel {
        license: "",
        modelfile: "",
        parameters: "",
        template: spec.chat_template.clone().unwrap_or_default(),
        details: ModelDetails::of(&spec),
        model_info,
        capabilities: capabilities(&spec),
        modified_at: rfc3339(spec.created),
    }))
}

/// Refuses a route that writes models.
fn refusal(route: &str, advice: &str) -> ErrorResponse {
    ErrorResponse(ApiError::not_supported(format!("`{route}` is not supported: {advice}")))
}

/// Copies are not supported
#[cfg_attr(test, utoipa::path(post, path = "/api/copy", tag = "ollama", responses((status = 501, description = "Not supported"))))]
pub(crate) async fn copy() -> ErrorResponse {
    refusal("/api/copy", "`serve --alias` gives a model further names")
}

/// Model files are not supported
#[cfg_attr(test, utoipa::path(post, path = "/api/create", tag = "ollama", responses((status = 501, description = "Not supported"))))]
pub(crate) async fn create() -> ErrorResponse {
    refusal("/api/create", "`stonechat quantize` and `convert` write models")
}

/// Uploads are not supported
#[cfg_attr(test, utoipa::path(post, path = "/api/push", tag = "ollama", responses((status = 501, description = "Not supported"))))]
pub(crate) async fn push() -> ErrorResponse {
    refusal("/api/push", "this server uploads no models")
}

#[cfg(test)]
mod tests {
    use super::parameter_size;

    #[test]
    fn sizes_have_a_letter() {
        assert_eq!(parameter_size(134_515_008), "135M");
        assert_eq!(parameter_size(8_030_261_248), "8.0B");
        assert_eq!(parameter_size(12_000), "12K");
    }
}
