//! `/completion` and `/infill`: llama-server's own routes of generated text.

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use stonechat_api::completion::{InfillFields, PromptFields};
use stonechat_api::text::Body;

use crate::json::Checked;
use crate::otlp::RequestTrace;
use crate::{AppState, HandlerResult, generation};

pub(crate) fn router() -> Router<AppState> {
    Router::new()
        .route("/completion", post(completion))
        .route("/completions", post(completion))
        .route("/infill", post(infill))
}

/// Body of `/completion`, for the document.
#[cfg(test)]
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "the fields are read by two structures")]
struct NativeRequest {
    #[serde(flatten)]
    own: PromptFields,
    #[serde(flatten)]
    generation: stonechat_api::generation::GenerationFields,
}

/// Completes prompts, with llama-server's fields
#[cfg_attr(test, utoipa::path(post, path = "/completion", tag = "text", request_body = NativeRequest, responses(
    (status = 200, body = Object, description = "An object, a list of them for several texts, or a stream"),
    (status = 400, description = "A field is invalid, or a prompt exceeds the context"),
    (status = 429, description = "The queue is full"),
    (status = 503, description = "The time of the request passed before its first token"),
)))]
pub(crate) async fn completion(
    State(state): State<AppState>,
    trace: RequestTrace,
    Checked(body): Checked<Body<PromptFields>>,
) -> HandlerResult<Response> {
    generation::answer(&state, &trace, body).await
}

/// Fills the gap between two texts
#[cfg_attr(test, utoipa::path(post, path = "/infill", tag = "text", request_body = InfillFields, responses(
    (status = 200, body = Object, description = "As of `/completion`"),
    (status = 501, description = "The vocabulary has no tokens for it"),
)))]
pub(crate) async fn infill(
    State(state): State<AppState>,
    trace: RequestTrace,
    Checked(body): Checked<Body<InfillFields>>,
) -> HandlerResult<Response> {
    generation::answer(&state, &trace, body).await
}
