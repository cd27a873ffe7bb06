//! `/v1/chat/completions`.

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use stonechat_api::chat::ChatCompletions;
use stonechat_api::text::Body;

use crate::json::Checked;
use crate::otlp::RequestTrace;
use crate::{AppState, HandlerResult, generation};

pub(crate) fn router() -> Router<AppState> {
    Router::new().route("/v1/chat/completions", post(chat)).route("/chat/completions", post(chat))
}

/// Body of a chat request, for the document.
#[cfg(test)]
#[derive(utoipa::ToSchema)]
#[schema(as = ChatRequest)]
#[expect(dead_code, reason = "the fields are read by two structures")]
struct ChatSchema {
    #[serde(flatten)]
    chat: stonechat_api::chat::ChatBody,
    #[serde(flatten)]
    generation: stonechat_api::generation::GenerationFields,
}

/// Answers a conversation
#[cfg_attr(test, utoipa::path(post, path = "/v1/chat/completions", tag = "text", request_body = ChatSchema, responses(
    (status = 200, body = Object, description = "`chat.completion`, or a stream of `chat.completion.chunk`"),
    (status = 400, description = "A field is invalid, or the prompt exceeds the context"),
    (status = 429, description = "The queue is full"),
    (status = 503, description = "The time of the request passed before its first token"),
)))]
pub(crate) async fn chat(
    State(state): State<AppState>,
    trace: RequestTrace,
    Checked(body): Checked<Body<ChatCompletions>>,
) -> HandlerResult<Response> {
    generation::answer(&state, &trace, body).await
}
