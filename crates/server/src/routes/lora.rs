//! `/lora-adapters`: there are none.

use axum::Router;
use axum::routing::get;
use serde_json::Value;

use super::Success;
use crate::{ApiError, AppState, HandlerResult, Json};

pub(crate) fn router() -> Router<AppState> {
    Router::new().route("/lora-adapters", get(list).post(set))
}

/// Adapters: none
#[cfg_attr(test, utoipa::path(get, path = "/lora-adapters", tag = "server", responses(
    (status = 200, description = "An empty list", body = Vec<Value>),
)))]
pub(crate) async fn list() -> Json<[Value; 0]> {
    Json([])
}

/// Sets the scales of adapters: an empty list is accepted, since there are none
#[cfg_attr(test, utoipa::path(post, path = "/lora-adapters", tag = "server", request_body = Vec<Value>, responses(
    (status = 200, description = "The list was empty", body = Success),
    (status = 501, description = "Adapters are not supported"),
)))]
pub(crate) async fn set(Json(adapters): Json<Vec<Value>>) -> HandlerResult<Json<Success>> {
    if adapters.is_empty() {
        return Ok(Json(Success::new()));
    }
    let n = adapters.len();
    let message =
        format!("LoRA adapters are not supported: expected an empty list, got {n} of them");
    Err(ApiError::not_supported(message).into())
}
