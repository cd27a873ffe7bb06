//! `/api/chat`, `/api/generate`, `/api/embed` and `/api/embeddings` of Ollama.

use axum::Router;
use axum::body::{Body, BodyDataStream};
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use futures_util::StreamExt;
use stonechat::Llm;
use stonechat_api::chat::Chat;
use stonechat_api::ollama::{
    Action, EmbedAnswer, EmbedBody, EmbeddingAnswer, LoadedLine, OllamaBody, OllamaChat,
    OllamaGenerate,
};
use stonechat_api::text::{Dialect, Frame};

use crate::json::Checked;
use crate::otlp::RequestTrace;
use crate::tasks::{blocking, within};
use crate::{AppState, HandlerResult, Json, ServerModels, generation, json, lines};

pub(crate) fn router() -> Router<AppState> {
    Router::new()
        .route("/api/chat", post(chat))
        .route("/api/generate", post(generate))
        .route("/api/embed", post(embed))
        .route("/api/embeddings", post(embeddings))
}

/// Answers a conversation in Ollama's form
#[cfg_attr(test, utoipa::path(post, path = "/api/chat", operation_id = "ollama_chat", tag = "ollama", request_body = Object, responses(
    (status = 200, body = Object, description = "An object, or a stream of lines"),
    (status = 400, description = "A field is invalid, or the prompt exceeds the context"),
    (status = 404, description = "There is no model of this name"),
)))]
pub(crate) async fn chat(
    State(state): State<AppState>,
    trace: RequestTrace,
    Checked(body): Checked<OllamaBody<Chat<OllamaChat>>>,
) -> HandlerResult<Response> {
    answer(&state, &trace, body, true).await
}

/// Completes a prompt in Ollama's form
#[cfg_attr(test, utoipa::path(post, path = "/api/generate", tag = "ollama", request_body = Object, responses(
    (status = 200, body = Object, description = "An object, or a stream of lines"),
    (status = 400, description = "A field is invalid, or the prompt exceeds the context"),
    (status = 404, description = "There is no model of this name"),
)))]
pub(crate) async fn generate(
    State(state): State<AppState>,
    trace: RequestTrace,
    Checked(body): Checked<OllamaBody<OllamaGenerate>>,
) -> HandlerResult<Response> {
    answer(&state, &trace, body, false).await
}

/// Embeds texts in Ollama's form
#[cfg_attr(test, utoipa::path(post, path = "/api/embed", tag = "ollama", request_body = Object, responses(
    (status = 200, body = EmbedAnswer),
    (status = 404, description = "There is no model of this name"),
)))]
pub(crate) async fn embed(
    State(state): State<AppState>,
    Checked(body): Checked<EmbedBody>,
) -> HandlerResult<Json<EmbedAnswer>> {
    Ok(Json(embedded(&state, body).await?))
}

/// Embeds a text in the older form of Ollama
#[cfg_attr(test, utoipa::path(post, path = "/api/embeddings", operation_id = "ollama_embeddings", tag = "ollama", request_body = Object, responses(
    (status = 200, body = EmbeddingAnswer),
    (status = 404, description = "There is no model of this name"),
)))]
pub(crate) async fn embeddings(
    State(state): State<AppState>,
    Checked(body): Checked<EmbedBody>,
) -> HandlerResult<Json<EmbeddingAnswer>> {
    Ok(Json(embedded(&state, body).await?.into_first()))
}

async fn embedded(state: &AppState, body: EmbedBody) -> HandlerResult<EmbedAnswer> {
    let spec = state.models().named(body.model()).await?;
    let (requested, start, unloads) = (body.model().to_owned(), body.start(), body.unloads());
    let deadline = state.options().deadline();
    let defaults = state.options().defaults();
    let request = body.request(&defaults)?;
    let model = state.open::<Llm>(Some(&spec.name), deadline).await?;
    let answer = match request {
        None => EmbedAnswer::new(&requested, None, &[], start),
        Some(request) => {
            let prepared = blocking(|| request.prepare(model.info(), &requested, &defaults))?;
            let vectors =
                within(deadline, model.embed(prepared.inputs, prepared.pooling)).await??;
            EmbedAnswer::new(&requested, Some(&prepared.answer), &vectors, start)
        }
    };
    drop(model);
    if unloads {
        state.models().release(&spec.name).await.unwrap_or_default();
    }
    Ok(answer)
}

/// Answers a body: a text, or a line that tells that the model was loaded or unloaded.
async fn answer<T: Dialect>(
    state: &AppState,
    trace: &RequestTrace,
    body: OllamaBody<T>,
    is_chat: bool,
) -> HandlerResult<Response> {
    state.check_ready()?;
    let spec = state.models().named(body.model()).await?;
    if let Some(n_ctx) = body.num_ctx().filter(|&n| n > spec.n_ctx as f64) {
        let (model, have) = (&spec.name, spec.n_ctx);
        tracing::info!(model, "num_ctx {n_ctx}: the context has {have} tokens (-c sets it)");
    }
    let (wanted, unloads, is_stream) = (body.wanted(), body.unloads(), body.is_stream());
    let requested = body.model().to_owned();
    let Some(text) = body.into_text(&spec.name) else {
        match wanted {
            Action::Unload => state.models().release(&spec.name).await?,
            _ => drop(state.open::<Llm>(Some(&spec.name), state.options().deadline()).await?),
        }
        let line = LoadedLine::new(&requested, is_chat, wanted == Action::Unload);
        let Frame { data, .. } = Frame::new(&line);
        return Ok(if is_stream { lines::response(data + "\n") } else { json::response(data) });
    };
    let response = generation::answer(state, trace, text).await?;
    if !unloads {
        return Ok(response);
    }
    let unload = Unload { models: state.models().clone(), name: spec.name.clone() };
    Ok(response.map(|body| {
        let parts = UnloadingBody { data: body.into_data_stream(), _unload: unload };
        let data = futures_util::stream::unfold(parts, |mut parts| async move {
            let next = parts.data.next().await?;
            Some((next, parts))
        });
        Body::from_stream(data)
    }))
}

/// Data of an answer after which its model is unloaded. The model is in use until the data are dropped, which are the first
/// field for that reason.
struct UnloadingBody {
    data: BodyDataStream,
    _unload: Unload,
}

/// Unloads a model when it is dropped, unless other requests use it.
struct Unload {
    models: ServerModels,
    name: String,
}

impl Drop for Unload {
    fn drop(&mut self) {
        let (models, name) = (self.models.clone(), std::mem::take(&mut self.name));
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { models.release(&name).await });
        }
    }
}
