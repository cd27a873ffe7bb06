//! `/health`: probes. It wakes no model and needs no key.

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use serde::Serialize;

use crate::{ApiError, AppState, HandlerResult, Json};

pub(crate) fn router() -> Router<AppState> {
    Router::new().route("/health", get(health)).route("/v1/health", get(health))
}

/// Answer of `/health`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub(crate) struct Health {
    /// `ok`.
    status: &'static str,
    /// Panics on threads of models since the start, if there were any.
    #[serde(skip_serializing_if = "Option::is_none")]
    engine_panics: Option<u64>,
    /// Models whose engine has stopped after a panic; the next request opens them again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stopped_models: Vec<String>,
}

/// Tells if requests are answered
///
/// 503 while the first models load, and while the server stops.
#[cfg_attr(test, utoipa::path(get, path = "/health", tag = "server", responses(
    (status = 200, body = Health),
    (status = 503, description = "The models are loading"),
)))]
pub(crate) async fn health(State(state): State<AppState>) -> HandlerResult<Json<Health>> {
    state.check_ready()?;
    if state.is_stopping() {
        return Err(ApiError::unavailable("The server is stopping").into());
    }
    let n_panics = state.metrics().n_panics();
    Ok(Json(Health {
        status: "ok",
        engine_panics: (n_panics > 0).then_some(n_panics),
        stopped_models: state.models().stopped(),
    }))
}
