//! `/slots`: the sequences of a language model, and their texts in files.

use std::path::{Component, Path, PathBuf};
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::routing::{get, post};
use serde::{Deserialize, Serialize};
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

/// State of a slot.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub(crate) struct Slot {
    id: usize,
    n_ctx: usize,
    speculative: bool,
    is_processing: bool,
    /// Number of the request; -1 without one.
    id_task: i64,
    n_prompt_tokens: usize,
    n_prompt_tokens_processed: usize,
    n_prompt_tokens_cache: usize,
    next_token: [NextToken; 1],
}

/// Progress of a text.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
struct NextToken {
    has_next_token: bool,
    /// Tokens up to the limit of the text; -1 without one.
    n_remain: i64,
    n_decoded: usize,
}

/// Answer to an action.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(untagged)]
pub(crate) enum ActionAnswer {
    /// The text was saved.
    Saved {
        id_slot: usize,
        filename: Option<String>,
        n_saved: usize,
        n_written: usize,
        timings: SaveTimings,
    },
    /// A text was restored.
    Restored {
        id_slot: usize,
        filename: Option<String>,
        n_restored: usize,
        n_read: usize,
        timings: RestoreTimings,
    },
    /// The text was erased.
    Erased { id_slot: usize, n_erased: usize },
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub(crate) struct SaveTimings {
    save_ms: f64,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub(crate) struct RestoreTimings {
    restore_ms: f64,
}

impl Slot {
    fn of((id, slot): (usize, &SlotInfo), n_ctx: usize, is_speculative: bool) -> Self {
        let is_processing = slot.request.is_some();
        Self {
            id,
            n_ctx,
            speculative: is_speculative,
            is_processing,
            id_task: slot.request.map_or(-1, |id| id as i64),
            n_prompt_tokens: slot.prompt_tokens,
            n_prompt_tokens_processed: slot.cached_tokens.min(slot.prompt_tokens),
            n_prompt_tokens_cache: slot.last_tokens,
            next_token: [NextToken {
                has_next_token: is_processing && slot.generated_tokens > 0,
                n_remain: slot.tokens_left.map_or(-1, |n| n as i64),
                n_decoded: slot.generated_tokens,
            }],
        }
    }
}

/// State of the slots
#[cfg_attr(test, utoipa::path(get, path = "/slots", tag = "server", params(SlotsQuery), responses(
    (status = 200, body = Vec<Slot>),
    (status = 501, description = "Switched off"),
    (status = 503, description = "No slot is idle"),
)))]
pub(crate) async fn slots(
    State(state): State<AppState>,
    Query(query): Query<SlotsQuery>,
) -> HandlerResult<Json<Vec<Slot>>> {
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
    let slots = slots.iter().enumerate().map(|slot| Slot::of(slot, n_ctx, is_speculative));
    Ok(Json(slots.collect()))
}

/// Saves, restores or erases the text of a slot
#[cfg_attr(test, utoipa::path(post, path = "/slots/{id}", tag = "server", params(ActionQuery, ("id" = usize, Path)),
    request_body = ActionBody, responses(
    (status = 200, body = ActionAnswer),
    (status = 400, description = "The slot is in use, or the file does not fit"),
    (status = 501, description = "No folder of saved slots"),
)))]
pub(crate) async fn act(
    State(state): State<AppState>,
    axum::extract::Path(id): axum::extract::Path<String>,
    Query(query): Query<ActionQuery>,
    body: Body,
) -> HandlerResult<Json<ActionAnswer>> {
    let id_slot =
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
            let saved = model.save_slot(id_slot, file()?).await?;
            ActionAnswer::Saved {
                id_slot,
                filename,
                n_saved: saved.n_tokens,
                n_written: saved.n_bytes,
                timings: SaveTimings { save_ms: ms() },
            }
        }
        "restore" => {
            let restored = model.restore_slot(id_slot, file()?).await.map_err(of_file)?;
            ActionAnswer::Restored {
                id_slot,
                filename,
                n_restored: restored.n_tokens,
                n_read: restored.n_bytes,
                timings: RestoreTimings { restore_ms: ms() },
            }
        }
        "erase" => ActionAnswer::Erased { id_slot, n_erased: model.erase_slot(id_slot).await? },
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
