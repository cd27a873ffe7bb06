//! `/v1/embeddings` and llama-server's `/embedding`.

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use stonechat::Llm;
use stonechat_api::embeddings::{EmbeddingsBody, EmbeddingsRequest};

use crate::json::{Checked, response};
use crate::tasks::{blocking, within};
use crate::{AppState, HandlerResult};

pub(crate) fn router() -> Router<AppState> {
    Router::new()
        .route("/v1/embeddings", post(embeddings))
        .route("/embedding", post(embedding))
        .route("/embeddings", post(embedding))
}

/// Embeds texts
#[cfg_attr(test, utoipa::path(post, path = "/v1/embeddings", tag = "text", request_body = EmbeddingsBody, responses(
    (status = 200, body = Object, description = "A `list` of `embedding`"),
    (status = 400, description = "A field is invalid, or a text exceeds the context"),
)))]
pub(crate) async fn embeddings(
    State(state): State<AppState>,
    Checked(body): Checked<EmbeddingsBody>,
) -> HandlerResult<Response> {
    let request = body.openai(&state.options().defaults())?;
    answer(&state, request).await
}

/// Embeds texts, in llama-server's shape: a list of vectors a text
#[cfg_attr(test, utoipa::path(post, path = "/embedding", tag = "text", request_body = EmbeddingsBody, responses(
    (status = 200, body = Object, description = "A list of `{index, embedding}`"),
)))]
pub(crate) async fn embedding(
    State(state): State<AppState>,
    Checked(body): Checked<EmbeddingsBody>,
) -> HandlerResult<Response> {
    answer(&state, body.native()?).await
}

async fn answer(state: &AppState, request: EmbeddingsRequest) -> HandlerResult<Response> {
    let deadline = state.options().deadline();
    let model = state.open::<Llm>(request.model(), deadline).await?;
    let name = model.name_for(request.model());
    let defaults = state.options().defaults();
    let prepared = blocking(|| request.prepare(model.info(), &name, &defaults))?;
    let vectors = within(deadline, model.embed(prepared.inputs, prepared.pooling)).await??;
    Ok(response(prepared.answer.whole(&vectors).data))
}
