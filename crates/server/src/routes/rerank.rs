//! `/v1/rerank` and `/v1/score`: relevance of documents by a language model.

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use stonechat::Llm;
use stonechat_api::rerank::{RerankAnswer, RerankBody, ScoreAnswer, ScoreBody};

use crate::json::Checked;
use crate::otlp::RequestTrace;
use crate::tasks::blocking;
use crate::{AppState, HandlerResult, Json, generation};

pub(crate) fn router() -> Router<AppState> {
    Router::new()
        .route("/v1/rerank", post(rerank))
        .route("/rerank", post(rerank))
        .route("/v1/reranking", post(rerank))
        .route("/reranking", post(rerank))
        .route("/v1/score", post(score))
        .route("/score", post(score))
}

/// Ranks documents by their relevance to a query
#[cfg_attr(test, utoipa::path(post, path = "/v1/rerank", tag = "text", request_body = RerankBody, responses(
    (status = 200, body = Object, description = "A `list` of `{index, relevance_score}`, or for `texts` a list of `{index, score}`"),
    (status = 400, description = "A field is invalid, or a document exceeds the context"),
    (status = 501, description = "The model has no tokens for both answers"),
)))]
pub(crate) async fn rerank(
    State(state): State<AppState>,
    trace: RequestTrace,
    Checked(body): Checked<RerankBody>,
) -> HandlerResult<Json<RerankAnswer>> {
    let (name, deadline) = (body.model().map(str::to_owned), state.options().deadline());
    let model = state.open::<Llm>(name.as_deref(), deadline).await?;
    let shown = model.name_for(name.as_deref());
    let (requests, form) = blocking(|| body.prepare(&model, &shown, deadline))?;
    let texts = generation::texts(&state, &trace, (model, name.as_deref()), requests).await?;
    Ok(Json(form.answer(&texts)?))
}

/// Scores pairs of texts
#[cfg_attr(test, utoipa::path(post, path = "/v1/score", tag = "text", request_body = ScoreBody, responses(
    (status = 200, body = Object, description = "A `list` of `{index, object, score}`"),
    (status = 400, description = "A field is invalid, or a pair exceeds the context"),
    (status = 501, description = "The model has no tokens for both answers"),
)))]
pub(crate) async fn score(
    State(state): State<AppState>,
    trace: RequestTrace,
    Checked(body): Checked<ScoreBody>,
) -> HandlerResult<Json<ScoreAnswer>> {
    let (name, deadline) = (body.model().map(str::to_owned), state.options().deadline());
    let model = state.open::<Llm>(name.as_deref(), deadline).await?;
    let shown = model.name_for(name.as_deref());
    let (requests, form) = blocking(|| body.prepare(&model, &shown, deadline))?;
    let texts = generation::texts(&state, &trace, (model, name.as_deref()), requests).await?;
    Ok(Json(form.answer(&texts)?))
}
