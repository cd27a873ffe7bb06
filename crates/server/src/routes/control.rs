//! `/v1/chat/completions/control`: ends the reasoning of a running answer.

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use serde::{Deserialize, Serialize};

use crate::{ApiError, AppState, HandlerResult, Json};

pub(crate) fn router() -> Router<AppState> {
    Router::new()
        .route("/v1/chat/completions/control", post(control))
        .route("/chat/completions/control", post(control))
}

/// Body of `/v1/chat/completions/control`.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub(crate) struct ControlBody {
    /// Identifier of the running answer.
    id: String,
    /// `reasoning_end`.
    action: String,
}

/// Answer of `/v1/chat/completions/control`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub(crate) struct ControlAnswer {
    /// Whether the answer is running.
    success: bool,
    /// Effect.
    message: &'static str,
}

/// Ends the reasoning of a running answer; what follows is its content
#[cfg_attr(test, utoipa::path(post, path = "/v1/chat/completions/control", tag = "text", request_body = ControlBody, responses(
    (status = 200, body = ControlAnswer),
    (status = 400, description = "The action is unknown"),
    (status = 404, description = "No running answer has this identifier"),
)))]
pub(crate) async fn control(
    State(state): State<AppState>,
    Json(body): Json<ControlBody>,
) -> HandlerResult<Json<ControlAnswer>> {
    if body.action != "reasoning_end" {
        let got = format!("`{}`", body.action.chars().take(80).collect::<String>());
        return Err(ApiError::field("action", "`reasoning_end`", got).into());
    }
    if !state.controls().end_reasoning(&body.id) {
        return Err(ApiError::not_found("no running answer has this `id`").into());
    }
    Ok(Json(ControlAnswer { success: true, message: "the reasoning ends with the next token" }))
}
