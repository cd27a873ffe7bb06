//! `/v1/messages` and `/v1/messages/count_tokens` of Anthropic.

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use stonechat_api::anthropic::{CountTokensBody, MessageTokens, Messages};
use stonechat_api::text::Body;

use crate::json::Checked;
use crate::otlp::RequestTrace;
use crate::tasks::blocking;
use crate::{AppState, HandlerResult, Json, generation};

pub(crate) fn router() -> Router<AppState> {
    Router::new()
        .route("/v1/messages", post(messages))
        .route("/v1/messages/count_tokens", post(count_tokens))
}

/// Answers a conversation in Anthropic's form
#[cfg_attr(test, utoipa::path(post, path = "/v1/messages", tag = "text", request_body = Object, responses(
    (status = 200, body = Object, description = "A `message`, or a stream of its events"),
    (status = 400, description = "A field is invalid, or the prompt exceeds the context"),
    (status = 429, description = "The queue is full"),
    (status = 503, description = "The time of the request passed before its first token"),
)))]
pub(crate) async fn messages(
    State(state): State<AppState>,
    trace: RequestTrace,
    Checked(body): Checked<Body<Messages>>,
) -> HandlerResult<Response> {
    generation::answer(&state, &trace, body).await
}

/// Counts the tokens of a conversation in Anthropic's form
#[cfg_attr(test, utoipa::path(post, path = "/v1/messages/count_tokens", tag = "text", request_body = Object, responses(
    (status = 200, body = MessageTokens),
    (status = 400, description = "A message is invalid, or the template refuses it"),
)))]
pub(crate) async fn count_tokens(
    State(state): State<AppState>,
    Checked(body): Checked<CountTokensBody>,
) -> HandlerResult<Json<MessageTokens>> {
    let model = state.language(body.model()).await?;
    let defaults = state.options().defaults();
    Ok(Json(blocking(|| body.answer(model.info(), &defaults))?))
}
