//! `/props`: properties of the server and of a language model. It wakes no model.

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use serde_json::{Value, json};
use stonechat::Llm;
use stonechat_api::generation::Settings;

use super::{ModelQuery, Query};
use crate::{ApiError, AppState, ErrorResponse, HandlerResult, Json, ModelSpec, ModelStatus};

pub(crate) fn router() -> Router<AppState> {
    Router::new().route("/props", get(props).post(set_props))
}

/// Properties of the server and its language model
///
/// Fields of the model are empty while it is not loaded.
#[cfg_attr(test, utoipa::path(get, path = "/props", tag = "server", params(ModelQuery), responses(
    (status = 200, body = Object),
    (status = 404, description = "There is no model of this name"),
)))]
pub(crate) async fn props(
    State(state): State<AppState>,
    Query(query): Query<ModelQuery>,
) -> HandlerResult<Json<Value>> {
    state.check_ready()?;
    let read =
        |spec: &ModelSpec, status, model: Option<&Llm>| of_model(&state, spec, status, model);
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

fn of_model(state: &AppState, spec: &ModelSpec, status: ModelStatus, model: Option<&Llm>) -> Value {
    let options = state.options();
    let mut props = json!({
        "default_generation_settings": {
            "params": Settings::new(&options.sampling, options.n_predict),
            "n_ctx": model.map_or(0, |model| model.info().n_ctx),
        },
        "total_slots": model.map_or(options.engine.n_parallel, |model| model.info().n_parallel),
        "model_alias": spec.id(),
        "model_ftype": spec.weights,
        "model_path": spec.path.display().to_string(),
        "modalities": {"vision": false, "video": false, "audio": false},
        "endpoint_slots": options.slots,
        "endpoint_props": false,
        "endpoint_metrics": options.metrics,
        "ui": options.page,
        "build_info": concat!("stonechat ", env!("CARGO_PKG_VERSION")),
        "is_sleeping": status == ModelStatus::Sleeping,
        "cors_proxy_enabled": false,
    });
    if let (Some(model), Some(fields)) = (model, props.as_object_mut()) {
        let info = &model.info().model;
        let tokenizer = info.tokenizer();
        let name = |id: Option<u32>| {
            let bytes = id.map_or(&[][..], |id| tokenizer.token_piece(id, true));
            String::from_utf8_lossy(bytes).into_owned()
        };
        let template = options.engine.chat_template.as_deref().or(info.chat_template());
        let able = model.info().chat_format.capabilities();
        let caps = json!({
            "supports_system_role": able.supports_system_role,
            "supports_developer_role": able.supports_developer_role,
            "supports_tools": able.supports_tools,
            "supports_tool_calls": able.supports_tool_calls,
            "requires_object_arguments": able.needs_object_arguments,
            "supports_typed_content": able.supports_parts,
            "requires_typed_content": able.needs_parts,
            "supports_reasoning_content": able.supports_reasoning,
        });
        fields.insert("chat_template".to_owned(), json!(template.unwrap_or_default()));
        fields.insert("chat_template_caps".to_owned(), caps);
        // Not a field of llama-server.
        fields.insert("device".to_owned(), json!(model.info().device));
        fields.insert("bos_token".to_owned(), json!(name(tokenizer.bos())));
        fields.insert("eos_token".to_owned(), json!(name(tokenizer.eos())));
    }
    props
}
