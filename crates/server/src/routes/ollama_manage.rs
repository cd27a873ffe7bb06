//! `/api/pull` and `/api/delete` of Ollama, with `--manage-models` alone.

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, post};
use futures_core::Stream;
use futures_util::StreamExt;
use serde::Serialize;
use stonechat::Models;
use stonechat_api::ErrorShape;
use stonechat_api::text::Frame;
use tokio::sync::mpsc::Receiver;

use super::ollama_models::NamedBody;
use crate::pull::{self, PullStep};
use crate::{ApiError, ApiResult, AppState, HandlerResult, Json, json, lines};

pub(crate) fn router() -> Router<AppState> {
    Router::new().route("/api/pull", post(pull)).route("/api/delete", delete(remove))
}

/// Line of a download.
#[derive(Debug, Default, Serialize)]
struct PullLine {
    status: String,
    /// Name of the file, by which clients tell the files apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    completed: Option<u64>,
}

/// The models folder that clients may change.
fn managed(state: &AppState) -> ApiResult<Models> {
    let options = state.options();
    if !options.manage_models {
        let message = "clients may not change the models: start the server with --manage-models";
        return Err(ApiError::forbidden(message));
    }
    options.installed.clone().ok_or_else(|| {
        ApiError::bad_request("this server has no models folder: start it with --all-models")
    })
}

/// Downloads a model
///
/// With `--manage-models` alone. The download ends when the client leaves; the next one continues it.
#[cfg_attr(test, utoipa::path(post, path = "/api/pull", tag = "ollama", request_body = NamedBody, responses(
    (status = 200, body = Object, description = "A stream of lines, or the last one"),
    (status = 403, description = "The server runs without --manage-models"),
    (status = 429, description = "Another download runs"),
)))]
pub(crate) async fn pull(
    State(state): State<AppState>,
    Json(body): Json<NamedBody>,
) -> HandlerResult<Response> {
    let models = managed(&state)?;
    let name = body.model()?;
    let name = name.strip_suffix(":latest").unwrap_or(name);
    let name = name.strip_prefix("hf.co/").unwrap_or(name).to_owned();
    let mut steps = pull::start(models, name)?;
    if body.stream.unwrap_or(true) {
        return Ok(lines::respond(stream(steps)));
    }
    while let Some(step) = steps.recv().await {
        if let PullStep::End(result) = step {
            result?;
        }
    }
    Ok(json::response(status("success").data))
}

fn status(status: &str) -> Frame {
    Frame::new(&PullLine { status: status.to_owned(), ..PullLine::default() })
}

/// Lines of a download.
fn stream(steps: Receiver<PullStep>) -> impl Stream<Item = String> {
    let first = futures_util::stream::iter([status("pulling manifest").data]);
    let rest = futures_util::stream::unfold(steps, |mut steps| async move {
        Some((line(steps.recv().await?), steps))
    });
    first.chain(rest)
}

fn line(step: PullStep) -> String {
    match step {
        PullStep::Progress { file, done, total } => {
            let line = PullLine {
                status: format!("pulling {file}"),
                digest: Some(file),
                total: Some(total),
                completed: Some(done),
            };
            Frame::new(&line).data
        }
        PullStep::End(Ok(())) => status("success").data,
        PullStep::End(Err(error)) => ErrorShape::Ollama.body(&error),
    }
}

/// Removes a model
///
/// With `--manage-models` alone, and of the models folder alone.
#[cfg_attr(test, utoipa::path(delete, path = "/api/delete", tag = "ollama", request_body = NamedBody, responses(
    (status = 200, description = "Removed"),
    (status = 403, description = "The server runs without --manage-models"),
    (status = 404, description = "There is no model of this name"),
)))]
pub(crate) async fn remove(
    State(state): State<AppState>,
    Json(body): Json<NamedBody>,
) -> HandlerResult<Response> {
    let models = managed(&state)?;
    let spec = state.models().named(body.model()?).await?;
    if spec.is_preset {
        let message = format!("`{}` was named at the start of the server", spec.name);
        return Err(ApiError::bad_request(message).into());
    }
    state.models().release(&spec.name).await?;
    let name = spec.name.clone();
    let removed = tokio::task::spawn_blocking(move || models.remove(&name)).await;
    removed.map_err(|error| ApiError::server(error.to_string()))??;
    Ok(StatusCode::OK.into_response())
}
