//! `/props`: properties of the server and of a language model. It wakes no model.

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use serde::Serialize;
use stonechat::Llm;
use stonechat_api::generation::Settings;

use super::{ModelQuery, Query};
use crate::{ApiError, AppState, ErrorResponse, HandlerResult, Json, ModelSpec, ModelStatus};

pub(crate) fn router() -> Router<AppState> {
    Router::new().route("/props", get(props).post(set_props))
}

/// Answer of `/props`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub(crate) struct Props {
    default_generation_settings: DefaultSettings,
    total_slots: usize,
    model_alias: String,
    model_ftype: String,
    model_path: String,
    modalities: Modalities,
    endpoint_slots: bool,
    endpoint_props: bool,
    endpoint_metrics: bool,
    ui: bool,
    build_info: &'static str,
    is_sleeping: bool,
    cors_proxy_enabled: bool,
    /// Absent while the model is not loaded.
    #[serde(flatten)]
    model: Option<ModelProps>,
}

/// Options of requests that do not say otherwise.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
struct DefaultSettings {
    #[cfg_attr(test, schema(value_type = Object))]
    params: Settings,
    n_ctx: usize,
}

/// Inputs other than text.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
struct Modalities {
    vision: bool,
    video: bool,
    audio: bool,
}

/// Properties of a loaded model.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
struct ModelProps {
    chat_template: String,
    chat_template_caps: TemplateCaps,
    /// Device of the model; not a field of llama-server.
    device: String,
    bos_token: String,
    eos_token: String,
}

/// Forms of messages that the chat template knows.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
struct TemplateCaps {
    supports_system_role: bool,
    supports_developer_role: bool,
    supports_tools: bool,
    supports_tool_calls: bool,
    requires_object_arguments: bool,
    supports_typed_content: bool,
    requires_typed_content: bool,
    supports_reasoning_content: bool,
}

/// Properties of the server and its language model
///
/// Fields of the model are empty while it is not loaded.
#[cfg_attr(test, utoipa::path(get, path = "/props", tag = "server", params(ModelQuery), responses(
    (status = 200, body = Props),
    (status = 404, description = "There is no model of this name"),
)))]
pub(crate) async fn props(
    State(state): State<AppState>,
    Query(query): Query<ModelQuery>,
) -> HandlerResult<Json<Props>> {
    state.check_ready()?;
    let read =
        |spec: &ModelSpec, status, model: Option<&Llm>| Props::of(&state, spec, status, model);
    Ok(Json(state.models().peek_language(query.model.as_deref(), read).await?))
}

/// Changing properties is not supported
#[cfg_attr(test, utoipa::path(post, path = "/props", tag = "server", responses(
    (status = 501, description = "Not supported"),
)))]
pub(crate) async fn set_props() -> ErrorResponse {
    let message = "This server does not support changing global properties";
    ErrorResponse(ApiError::not_supported(message))
}

impl Props {
    fn of(state: &AppState, spec: &ModelSpec, status: ModelStatus, model: Option<&Llm>) -> Self {
        let options = state.options();
        Self {
            default_generation_settings: DefaultSettings {
                params: Settings::new(&options.sampling, options.n_predict),
                n_ctx: model.map_or(0, |model| model.info().n_ctx),
            },
            total_slots: model.map_or(options.engine.n_parallel, |model| model.info().n_parallel),
            model_alias: spec.id().to_owned(),
            model_ftype: spec.weights.clone(),
            model_path: spec.path.display().to_string(),
            modalities: Modalities::default(),
            endpoint_slots: options.slots,
            endpoint_props: false,
            endpoint_metrics: options.metrics,
            ui: options.page,
            build_info: concat!("stonechat ", env!("CARGO_PKG_VERSION")),
            is_sleeping: status == ModelStatus::Sleeping,
            cors_proxy_enabled: false,
            model: model
                .map(|model| ModelProps::of(model, options.engine.chat_template.as_deref())),
        }
    }
}

impl ModelProps {
    /// Properties of a model whose template is replaced by `template`, if there is one.
    fn of(model: &Llm, template: Option<&str>) -> Self {
        let info = &model.info().model;
        let tokenizer = info.tokenizer();
        let name = |id: Option<u32>| {
            let bytes = id.map_or(&[][..], |id| tokenizer.token_piece(id, true));
            String::from_utf8_lossy(bytes).into_owned()
        };
        let able = model.info().chat_format.capabilities();
        Self {
            chat_template: template.or(info.chat_template()).unwrap_or_default().to_owned(),
            chat_template_caps: TemplateCaps {
                supports_system_role: able.supports_system_role,
                supports_developer_role: able.supports_developer_role,
                supports_tools: able.supports_tools,
                supports_tool_calls: able.supports_tool_calls,
                requires_object_arguments: able.needs_object_arguments,
                supports_typed_content: able.supports_parts,
                requires_typed_content: able.needs_parts,
                supports_reasoning_content: able.supports_reasoning,
            },
            device: model.info().device.clone(),
            bos_token: name(tokenizer.bos()),
            eos_token: name(tokenizer.eos()),
        }
    }
}
