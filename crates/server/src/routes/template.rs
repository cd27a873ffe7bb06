//! `/apply-template` and `/v1/chat/completions/input_tokens`: the prompt of a chat request, and its length.

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use stonechat_api::template::{InputTokens, Prompt, PromptBody};

use crate::tasks::blocking;
use crate::{AppState, HandlerResult, Json};

pub(crate) fn router() -> Router<AppState> {
    Router::new()
        .route("/apply-template", post(apply_template))
        .route("/v1/chat/completions/input_tokens", post(input_tokens))
        .route("/chat/completions/input_tokens", post(input_tokens))
}

/// Renders the chat template without generating
#[cfg_attr(test, utoipa::path(post, path = "/apply-template", tag = "text", request_body = PromptBody, responses(
    (status = 200, body = Prompt),
    (status = 400, description = "A message is invalid, or the template refuses it"),
)))]
pub(crate) async fn apply_template(
    State(state): State<AppState>,
    Json(body): Json<PromptBody>,
) -> HandlerResult<Json<Prompt>> {
    let model = state.language(body.model()).await?;
    let defaults = state.options().defaults();
    Ok(Json(blocking(|| body.prompt(model.info(), &defaults))?))
}

/// Counts the tokens of a chat request
#[cfg_attr(test, utoipa::path(post, path = "/v1/chat/completions/input_tokens", tag = "text", request_body = PromptBody, responses(
    (status = 200, body = InputTokens),
    (status = 400, description = "A message is invalid, or the template refuses it"),
)))]
pub(crate) async fn input_tokens(
    State(state): State<AppState>,
    Json(body): Json<PromptBody>,
) -> HandlerResult<Json<InputTokens>> {
    let model = state.language(body.model()).await?;
    let defaults = state.options().defaults();
    Ok(Json(blocking(|| body.input_tokens(model.info(), &defaults))?))
}
