//! `/apply-template` and `/v1/chat/completions/input_tokens`: the prompt of a chat request, and its length.

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use serde::{Deserialize, Serialize};
use stonechat::text::MarkedText;

use crate::chat_body::ChatBody;
use crate::tasks::blocking;
use crate::{ApiResult, AppState, Json, LanguageGuard};

pub(crate) fn router() -> Router<AppState> {
    Router::new()
        .route("/apply-template", post(apply_template))
        .route("/v1/chat/completions/input_tokens", post(input_tokens))
        .route("/chat/completions/input_tokens", post(input_tokens))
}

/// Body of a chat request.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub(crate) struct PromptBody {
    /// Name of the model.
    model: Option<String>,
    #[serde(flatten)]
    chat: ChatBody,
}

/// Answer of `/apply-template`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub(crate) struct Prompt {
    /// Rendered text.
    prompt: String,
}

/// Answer of `/v1/chat/completions/input_tokens`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub(crate) struct InputTokens {
    /// `response.input_tokens`.
    object: &'static str,
    /// Tokens of the prompt.
    input_tokens: usize,
}

/// Renders a body; returns the prompt and its model.
async fn render(state: &AppState, body: PromptBody) -> ApiResult<(MarkedText, LanguageGuard)> {
    let model = state.language(body.model.as_deref()).await?;
    let chat = body.chat.request()?;
    let prompt = blocking(|| model.info().chat_format.prompt(chat.conversation))?;
    Ok((prompt, model))
}

/// Renders the chat template without generating
#[cfg_attr(test, utoipa::path(post, path = "/apply-template", tag = "text", request_body = PromptBody, responses(
    (status = 200, body = Prompt),
    (status = 400, description = "A message is invalid, or the template refuses it"),
)))]
pub(crate) async fn apply_template(
    State(state): State<AppState>,
    Json(body): Json<PromptBody>,
) -> ApiResult<Json<Prompt>> {
    Ok(Json(Prompt { prompt: render(&state, body).await?.0.text() }))
}

/// Counts the tokens of a chat request
#[cfg_attr(test, utoipa::path(post, path = "/v1/chat/completions/input_tokens", tag = "text", request_body = PromptBody, responses(
    (status = 200, body = InputTokens),
    (status = 400, description = "A message is invalid, or the template refuses it"),
)))]
pub(crate) async fn input_tokens(
    State(state): State<AppState>,
    Json(body): Json<PromptBody>,
) -> ApiResult<Json<InputTokens>> {
    let (prompt, model) = render(&state, body).await?;
    let input_tokens = blocking(|| model.info().model.tokenize_marked_chat(&prompt)).len();
    Ok(Json(InputTokens { object: "response.input_tokens", input_tokens }))
}
