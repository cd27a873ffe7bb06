//! `/metrics`: Prometheus text.

use axum::Router;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;

use crate::{ApiError, AppState, HandlerResult};

/// Media type of the text of `prometheus-client`.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(crate) fn router() -> Router<AppState> {
    Router::new().route("/metrics", get(metrics))
}

/// Metrics of llama-server and vLLM
///
/// 501 unless the server was started with `--metrics`.
#[cfg_attr(test, utoipa::path(get, path = "/metrics", tag = "server", responses(
    (status = 200, content_type = "application/openmetrics-text", body = String),
    (status = 501, description = "Started without `--metrics`"),
)))]
pub(crate) async fn metrics(State(state): State<AppState>) -> HandlerResult<impl IntoResponse> {
    if !state.options().metrics {
        let message = "This server does not support metrics endpoint. Start it with `--metrics`";
        return Err(ApiError::not_supported(message).into());
    }
    state.models().record(state.metrics());
    let headers = [
        (CONTENT_TYPE.as_str(), OPEN_METRICS.to_owned()),
        ("process-start-time-unix", state.started_unix().to_string()),
    ];
    Ok((headers, state.metrics().text()))
}
