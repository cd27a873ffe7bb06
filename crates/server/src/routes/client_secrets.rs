//! `/v1/realtime/client_secrets`: short-lived keys of `/v1/realtime`, for clients that should not have an API key.

use std::time::Instant;

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use stonechat::Whisper;
use stonechat_api::realtime::{ClientSecret, ClientSecretBody};

use crate::json::Checked;
use crate::{AppState, HandlerResult, Json};

pub(crate) fn router() -> Router<AppState> {
    Router::new()
        .route("/v1/realtime/client_secrets", post(client_secret))
        .route("/realtime/client_secrets", post(client_secret))
}

/// Makes a key of `/v1/realtime` that expires, with the configuration of its sessions
#[cfg_attr(test, utoipa::path(post, path = "/v1/realtime/client_secrets", tag = "audio", request_body = ClientSecretBody, responses(
    (status = 200, body = Object, description = "The secret `value`, `expires_at` in seconds since 1970, and the `session`"),
    (status = 400, description = "A field is invalid, or has no effect here"),
    (status = 404, description = "There is no model of this name"),
    (status = 429, description = "Too many secrets have not expired"),
)))]
pub(crate) async fn client_secret(
    State(state): State<AppState>,
    Checked(body): Checked<ClientSecretBody>,
) -> HandlerResult<Json<ClientSecret>> {
    let (config, seconds) = body.prepare()?;
    if config.model.is_some() {
        state.models().check::<Whisper>(config.model.as_deref()).await?;
    }
    let secrets = state.credentials().secrets();
    let value = secrets.create(config.clone(), seconds, Instant::now())?;
    Ok(Json(ClientSecret::new(value, seconds, &config)))
}
