//! `/tokenize` and `/detokenize`.

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use stonechat_api::tokenize::{DetokenizeBody, Text, TokenizeBody, Tokens};

use crate::tasks::blocking;
use crate::{AppState, HandlerResult, Json};

pub(crate) fn router() -> Router<AppState> {
    Router::new().route("/tokenize", post(tokenize)).route("/detokenize", post(detokenize))
}

/// Tokens of a text
#[cfg_attr(test, utoipa::path(post, path = "/tokenize", tag = "text", request_body = TokenizeBody, responses(
    (status = 200, body = Tokens),
)))]
pub(crate) async fn tokenize(
    State(state): State<AppState>,
    Json(body): Json<TokenizeBody>,
) -> HandlerResult<Json<Tokens>> {
    let model = state.language(body.model()).await?;
    Ok(Json(blocking(|| body.answer(&model.info().model))?))
}

/// Text of tokens
#[cfg_attr(test, utoipa::path(post, path = "/detokenize", tag = "text", request_body = DetokenizeBody, responses(
    (status = 200, body = Text),
)))]
pub(crate) async fn detokenize(
    State(state): State<AppState>,
    Json(body): Json<DetokenizeBody>,
) -> HandlerResult<Json<Text>> {
    let model = state.language(body.model()).await?;
    Ok(Json(blocking(|| body.answer(&model.info().model))?))
}
