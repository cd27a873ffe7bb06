//! `/v1/completions`: OpenAI's text completions.

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use stonechat_api::completions::CompletionFields;
use stonechat_api::text::Body;

use crate::json::Checked;
use crate::otlp::RequestTrace;
use crate::{AppState, HandlerResult, generation};

pub(crate) fn router() -> Router<AppState> {
    Router::new().route("/v1/completions", post(completions))
}

/// Body of a completion, for the document.
#[cfg(test)]
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "the fields are read by two structures")]
struct CompletionRequest {
    #[serde(flatten)]
    own: CompletionFields,
    #[serde(flatten)]
    generation: stonechat_api::generation::GenerationFields,
}

/// Completes prompts
#[cfg_attr(test, utoipa::path(post, path = "/v1/completions", tag = "text", request_body = CompletionRequest, responses(
    (status = 200, body = Object, description = "`text_completion`, or a stream of them"),
    (status = 400, description = "A field is invalid, or a prompt exceeds the context"),
    (status = 429, description = "The queue is full"),
    (status = 503, description = "The time of the request passed before its first token"),
)))]
pub(crate) async fn completions(
    State(state): State<AppState>,
    trace: RequestTrace,
    Checked(body): Checked<Body<CompletionFields>>,
) -> HandlerResult<Response> {
    generation::answer(&state, &trace, body).await
}
