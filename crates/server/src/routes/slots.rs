//! `/slots`: the sequences of a language model, and their texts in files.

use std::path::{Component, Path, PathBuf};
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::routing::{get, post};
use serde::Deserialize;
use serde_json::{Value, json};
use stonechat::llm::{Error as LlmError, SlotInfo};
use stonechat_api::json::from_bytes;

use super::Query;
use crate::json::read_body;
use crate::{ApiError, ApiResult, AppState, HandlerResult, Json};

pub(crate) fn router() -> Router<AppState> {
    Router::new().route("/slots", get(slots)).route("/slots/{id}", post(act))
}

/// Parameters of `GET /slots`.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(utoipa::IntoParams))]
pub(crate) struct SlotsQuery {
    /// Name of the model.
    model: Option<String>,
    /// With any value: 503 if no slot is idle.
    fail_on_no_slot: Option<String>,
}

/// Parameters of `POST /slots/{id}`.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::IntoParams))]
pub(crate) struct ActionQuery {
    /// Name of the model.
    model: Option<String>,
    /// `save`, `restore` or `erase`.
    action: String,
}

/// Body of `POST /slots/{id}`.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
struct ActionBody {
    /// Name of a file in the folder of saved slots.
    #[serde(default)]
    filename: Option<String>,
}

/// State of the slots
#[cfg_attr(test, utoipa::path(get, path = "/slots", tag = "server", params(SlotsQuery), responses(
    (status = 200, body = Object, description = "A list of slots"),
    (status = 501, description = "Switched off"),
    (status = 503, description = "No slot is idle"),
)))]
pub(crate) async fn slots(
    State(state): State<AppState>,
    Query(query): Query<SlotsQuery>,
) -> HandlerResult<Json<Value>> {
    if !state.options().slots {
        let message = "This server does not support slots endpoint. Start it without `--no-slots`";
        return Err(ApiError::not_supported(message).into());
    }
    let model = state.language(query.model.as_deref()).await?;
    let slots = model.slots().await?;
    if query.fail_on_no_slot.is_some() && slots.iter().all(|slot| slot.request.is_some()) {
        return Err(ApiError::unavailable("no slot available").into());
    }
    let n_ctx = model.info().n_ctx;
    let is_speculative = model.spec().drafts(&state.options().engine).is_some();
    let of_slot = |(id, slot): (usize, &SlotInfo)| {
        let is_processing = slot.request.is_some();
        let remaining = slot.tokens_left.map_or(-1, |n| n as i64);
        json!({
            "id": id,
            "n_ctx": n_ctx,
            "speculative": is_speculative,
            "is_processing": is_processing,
            "id_task": slot.request.map_or(-1, |id| id as i64),
            "n_prompt_tokens": slot.prompt_tokens,
            "n_prompt_tokens_processed": slot.cached_tokens.min(slot.prompt_tokens),
            "n_prompt_tokens_cache": slot.last_tokens,
            "next_token": [{
                "has_next_token": is_processing && slot.generated_tokens > 0,
                "n_remain": remaining,
                "n_decoded": slot.generated_tokens,
            }],
        })
    };
    Ok(Json(slots.iter().enumerate().map(of_slot).collect::<Vec<_>>().into()))
}

/// Saves, restores or erases the text of a slot
#[cfg_attr(test, utoipa::path(post, path = "/slots/{id}", tag = "server", params(ActionQuery, ("id" = usize, Path)),
    request_body = ActionBody, responses(
    (status = 200, body = Object),
    (status = 400, description = "The slot is in use, or the file does not fit"),
    (status = 501, description = "No folder of saved slots"),
)))]
pub(crate) async fn act(
    State(state): State<AppState>,
    axum::extract::Path(id): axum::extract::Path<String>,
    Query(query): Query<ActionQuery>,
    body: Body,
) -> HandlerResult<Json<Value>> {
    let id =
        id.parse().map_err(|_| ApiError::field("id", "the number of a slot", format!("`{id}`")))?;
    let Some(folder) = &state.options().slot_save_path else {
        let message = "This server does not support slots action. Start it with `--slot-save-path`";
        return Err(ApiError::not_supported(message).into());
    };
    let body = read_body(body, state.options().max_body_size).await?;
    let ActionBody { filename } =
        if body.is_empty() { ActionBody::default() } else { from_bytes(&body)? };
    let file = || file(folder, filename.as_deref());
    let model = state.language(query.model.as_deref()).await?;
    let started = Instant::now();
    let ms = || started.elapsed().as_secs_f64() * 1e3;
    Ok(Json(match query.action.as_str() {
        "save" => {
            let saved = model.save_slot(id, file()?).await?;
            json!({
                "id_slot": id,
                "filename": filename,
                "n_saved": saved.n_tokens,
                "n_written": saved.n_bytes,
                "timings": {"save_ms": ms()},
            })
        }
        "restore" => {
            let restored = model.restore_slot(id, file()?).await.map_err(of_file)?;
            json!({
                "id_slot": id,
                "filename": filename,
                "n_restored": restored.n_tokens,
                "n_read": restored.n_bytes,
                "timings": {"restore_ms": ms()},
            })
        }
        "erase" => json!({"id_slot": id, "n_erased": model.erase_slot(id).await?}),
        other => {
            let expected = "`save`, `restore` or `erase`";
            return Err(ApiError::field("action", expected, format!("`{other}`")).into());
        }
    }))
}

/// Error of saving or restoring. A file that cannot be restored is an error of the request; its folder is not told.
fn of_file(error: stonechat::Error) -> ApiError {
    match error {
        stonechat::Error::Llm(LlmError::PromptCache { problem, .. }) => {
            ApiError::bad_request(format!("`filename`: cannot restore this file: {problem}"))
        }
        error => error.into(),
    }
}

/// Path of a file in the folder: the name of a client has no folder in it.
fn file(folder: &Path, name: Option<&str>) -> ApiResult<PathBuf> {
    let name = name.unwrap_or_default();
    let mut parts = Path::new(name).components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(part)), None) if part == name => Ok(folder.join(name)),
        _ => Err(ApiError::field("filename", "the name of a file", format!("`{name}`"))),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::file;

    #[test]
    fn names_stay_in_the_folder() {
        let folder = Path::new("saved");
        assert_eq!(file(folder, Some("a.bin")).unwrap(), folder.join("a.bin"));
        for name in ["", ".", "..", "../a", "/etc/a", "a/b", "a/"] {
            assert!(file(folder, Some(name)).is_err(), "{name}");
        }
    }
}
