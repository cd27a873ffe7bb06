//! `/v1/responses`: OpenAI's Responses, and the responses that are kept.

use axum::Router;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::{get, post};
use serde::{Deserialize, Serialize};
use stonechat_api::responses::Responses;
use stonechat_api::template::InputTokens;
use stonechat_api::text::Body;

use super::Query;
use crate::json::Checked;
use crate::otlp::RequestTrace;
use crate::random::random_id;
use crate::response_store::{MAX_RESPONSE_BYTES, Missing, Owner};
use crate::tasks::blocking;
use crate::{ApiError, AppState, ErrorResponse, HandlerResult, Json, auth, generation, json};

pub(crate) fn router() -> Router<AppState> {
    Router::new()
        .route("/v1/responses", post(create))
        .route("/responses", post(create))
        .route("/v1/responses/input_tokens", post(input_tokens))
        .route("/responses/input_tokens", post(input_tokens))
        .route("/v1/responses/{id}", get(retrieve).delete(delete))
        .route("/responses/{id}", get(retrieve).delete(delete))
}

/// Parameters of a kept response.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct KeptQuery {
    /// Whether the response is a stream: false.
    stream: Option<bool>,
}

/// Answer to a deletion.
#[derive(Debug, Serialize)]
pub(crate) struct Deleted {
    id: String,
    object: &'static str,
    deleted: bool,
}

/// API key of a request that was let in.
fn owner(state: &AppState, headers: &HeaderMap) -> Owner {
    auth::key_of(headers, &state.credentials().keys()).map(Into::into)
}

/// Error of an identifier without a response.
fn missing(id: &str, reason: Missing) -> ApiError {
    let id: String = id.chars().take(80).collect();
    ApiError::not_found(match reason {
        Missing::Unknown => {
            format!(
                "no response `{id}`: it was not stored, was deleted, or had to make room for others"
            )
        }
        Missing::TooLarge => {
            let limit = MAX_RESPONSE_BYTES >> 20;
            format!("response `{id}` was not stored: it is larger than {limit} MiB with its input")
        }
    })
}

/// Puts kept items into the input, and continues the response that the body names.
fn continue_previous(
    state: &AppState,
    owner: &Owner,
    body: &mut Body<Responses>,
) -> HandlerResult<()> {
    let store = state.responses();
    body.own_mut().resolve(|id| store.with_item(owner, id))?;
    let Some(id) = body.own().previous_response() else { return Ok(()) };
    let kept = store.get(owner, id);
    let kept = kept.map_err(|reason| missing(id, reason).with_param("previous_response_id"))?;
    Ok(body.own_mut().continue_from(&kept)?)
}

/// Answers the input of a client
#[cfg_attr(test, utoipa::path(post, path = "/v1/responses", tag = "text", request_body = Object, responses(
    (status = 200, body = Object, description = "`response`, or a stream of events that ends with `response.completed` or `response.failed`"),
    (status = 400, description = "A field is invalid, or the prompt exceeds the context"),
    (status = 404, description = "`previous_response_id` or a referenced item is not kept"),
    (status = 429, description = "The queue is full"),
    (status = 503, description = "The time of the request passed before its first token"),
)))]
pub(crate) async fn create(
    State(state): State<AppState>,
    trace: RequestTrace,
    headers: HeaderMap,
    Checked(mut body): Checked<Body<Responses>>,
) -> HandlerResult<Response> {
    let owner = owner(&state, &headers);
    continue_previous(&state, &owner, &mut body)?;
    let store = state.responses().clone();
    let keep = move |response| store.insert(&owner, response);
    body.own_mut().keep(random_id("resp_")?, keep);
    let fields = body.fields();
    let failed = fields.is_stream().then(|| body.own().failed(fields.model()));
    match generation::answer(&state, &trace, body).await {
        Err(ErrorResponse(error)) => {
            let frames = failed.and_then(|failed| failed.frames(&error));
            Ok(generation::events(frames.ok_or(error)?))
        }
        answer => answer,
    }
}

/// Counts the tokens of an input
#[cfg_attr(test, utoipa::path(post, path = "/v1/responses/input_tokens", tag = "text", request_body = Object, responses(
    (status = 200, body = InputTokens),
    (status = 400, description = "A field is invalid, or the template refuses a message"),
)))]
pub(crate) async fn input_tokens(
    State(state): State<AppState>,
    headers: HeaderMap,
    Checked(mut body): Checked<Body<Responses>>,
) -> HandlerResult<Json<InputTokens>> {
    continue_previous(&state, &owner(&state, &headers), &mut body)?;
    let model = state.language(body.fields().model()).await?;
    let defaults = state.options().defaults();
    Ok(Json(blocking(|| body.into_own().input_tokens(model.info(), &defaults))?))
}

/// Returns a kept response
#[cfg_attr(test, utoipa::path(get, path = "/v1/responses/{id}", tag = "text",
    params(("id" = String, Path, description = "Identifier of the response")), responses(
    (status = 200, body = Object, description = "`response`"),
    (status = 404, description = "The response is not kept"),
)))]
pub(crate) async fn retrieve(
    State(state): State<AppState>,
    headers: HeaderMap,
    Path(id): Path<String>,
    Query(query): Query<KeptQuery>,
) -> HandlerResult<Response> {
    if query.stream == Some(true) {
        return Err(ApiError::field("stream", "false for a response that has ended", true).into());
    }
    let kept = state.responses().get(&owner(&state, &headers), &id);
    Ok(json::response(kept.map_err(|reason| missing(&id, reason))?.body.clone()))
}

/// Deletes a kept response
#[cfg_attr(test, utoipa::path(delete, path = "/v1/responses/{id}", tag = "text",
    params(("id" = String, Path, description = "Identifier of the response")), responses(
    (status = 200, body = Object, description = "The response is deleted"),
    (status = 404, description = "The response is not kept"),
)))]
pub(crate) async fn delete(
    State(state): State<AppState>,
    headers: HeaderMap,
    Path(id): Path<String>,
) -> HandlerResult<Json<Deleted>> {
    if !state.responses().delete(&owner(&state, &headers), &id) {
        return Err(missing(&id, Missing::Unknown).into());
    }
    Ok(Json(Deleted { id, object: "response", deleted: true }))
}
