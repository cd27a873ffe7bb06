//! `/v1/realtime`: transcription of live audio over a WebSocket.

use std::time::Duration;

use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::get;
use axum::{Extension, Router};
use serde::Deserialize;
use stonechat::Whisper;
use stonechat_api::realtime::{
    Action, Config, Dialect, MAX_MESSAGE_BYTES, ServerEvent, Session, Update,
};
use tokio::time::{Instant, sleep_until, timeout};

use super::Query;
use crate::client_secrets::SecretConfig;
use crate::live::{Command, LivePermit, LiveSession, Protocol, Setup};
use crate::otlp::{LiveTrace, RequestTrace};
use crate::tasks::blocking;
use crate::{ApiError, ApiResult, AppState, HandlerResult, incoming};

/// Subprotocol of OpenAI's API, beside which browsers send the key.
const PROTOCOL: &str = "realtime";
/// Subprotocol of the beta interface.
const BETA_PROTOCOL: &str = "openai-beta.realtime-v1";
/// Time in which a client answers the end of its connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes of a message that is decoded beside other tasks.
const LARGE: usize = 64 << 10;

/// Paths of the route, which takes client secrets in place of API keys.
pub(crate) const PATHS: [&str; 2] = ["/v1/realtime", "/realtime"];

pub(crate) fn router() -> Router<AppState> {
    PATHS.into_iter().fold(Router::new(), |router, path| router.route(path, get(realtime)))
}

/// Parameters of the query.
#[derive(Debug, Clone, Default, Deserialize)]
#[cfg_attr(test, derive(utoipa::IntoParams))]
pub(crate) struct RealtimeQuery {
    /// `transcription`, the default
    intent: Option<String>,
    /// Name of the model; not needed if there is only one
    model: Option<String>,
    /// Spoken language: code or English name; detected by default
    language: Option<String>,
}

/// Live transcription over a WebSocket, with OpenAI's events
#[cfg_attr(test, utoipa::path(get, path = "/v1/realtime", tag = "audio", params(RealtimeQuery), responses(
    (status = 101, description = "A WebSocket"),
    (status = 400, description = "A parameter is invalid, or the request is no WebSocket"),
    (status = 404, description = "There is no model of this name"),
    (status = 429, description = "Too many sessions are open"),
)))]
pub(crate) async fn realtime(
    State(state): State<AppState>,
    Query(query): Query<RealtimeQuery>,
    headers: HeaderMap,
    trace: RequestTrace,
    secret: Option<Extension<SecretConfig>>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> HandlerResult<Response> {
    // No browser lets CORS decide about a WebSocket.
    incoming::check_origin(&headers, state.options())?;
    state.check_ready()?;
    let upgrade = upgrade.map_err(|error| ApiError::bad_request(error.body_text()))?;
    if let Some(intent) = query.intent.filter(|intent| intent != "transcription") {
        let got = format!("`{intent}`: no model here answers with speech");
        return Err(ApiError::field("intent", "`transcription`", got).into());
    }
    let text = |text: Option<String>| text.filter(|text| !text.is_empty());
    let of_secret = secret.map(|Extension(SecretConfig(config))| config).unwrap_or_default();
    let config = Config {
        model: text(query.model).or(of_secret.model),
        language: text(query.language).or(of_secret.language),
        ..of_secret
    };
    let setup = Setup::of(&config)?;
    // A client without one names it in `session.update`.
    if config.model.is_some() {
        state.models().check::<Whisper>(config.model.as_deref()).await?;
    }
    let permit = state.live().admit(Protocol::Realtime, state.metrics())?;
    let is_beta = headers.get("openai-beta").is_some_and(|value| value == "realtime=v1")
        || upgrade.requested_protocols().any(|protocol| protocol == BETA_PROTOCOL);
    let dialect = if is_beta { Dialect::Beta } else { Dialect::Ga };
    let upgrade = upgrade
        .protocols([PROTOCOL, BETA_PROTOCOL])
        .max_message_size(MAX_MESSAGE_BYTES)
        .max_frame_size(MAX_MESSAGE_BYTES)
        .on_failed_upgrade(|error| tracing::debug!("a WebSocket did not open: {error}"));
    Ok(upgrade.on_upgrade(move |socket| async move {
        let connection =
            Connection { socket, session: Session::new(config, dialect), state: state.clone() };
        tokio::select! {
            () = connection.serve(setup, permit, LiveTrace::of(&trace)) => {}
            () = state.live().ended() => {}
        }
    }))
}

/// A session and its socket.
struct Connection {
    socket: WebSocket,
    session: Session,
    state: AppState,
}

/// Reason of the end of a session.
enum End {
    /// The client has gone, or reads too slowly.
    Gone,
    /// The server ends it, with the code and the reason of the close frame.
    Close(u16, &'static str),
}

impl Connection {
    /// Serves a session until its end.
    async fn serve(mut self, setup: Setup, permit: LivePermit, trace: LiveTrace) {
        let end = self.exchange(setup, trace).await;
        // The engine is free before the client has answered.
        drop(permit);
        if let End::Close(code, reason) = end {
            let frame = CloseFrame { code, reason: reason.into() };
            if self.socket.send(Message::Close(Some(frame))).await.is_ok() {
                let rest = async { while let Some(Ok(_)) = self.socket.recv().await {} };
                // A client that does not answer has gone.
                let _ = timeout(CLOSE_TIMEOUT, rest).await;
            }
        }
    }

    /// Exchanges events until the end of the session, which ends its task.
    async fn exchange(&mut self, setup: Setup, trace: LiveTrace) -> End {
        let mut live = LiveSession::start(&self.state, setup, trace);
        if !self.send(&self.session.created()).await {
            return End::Gone;
        }
        let idle = self.state.options().live_idle_timeout;
        // `None` beyond all times.
        let next_deadline = || Instant::now().checked_add(idle);
        let (mut deadline, mut is_stopping) = (next_deadline(), false);
        loop {
            let state = self.state.clone();
            tokio::select! {
                message = self.socket.recv() => match message {
                    Some(Ok(Message::Text(_))) if is_stopping => {}
                    Some(Ok(Message::Text(text))) => {
                        deadline = next_deadline();
                        if !self.receive(&text, &live).await {
                            return End::Gone;
                        }
                    }
                    Some(Ok(Message::Binary(_))) => {
                        let error = ApiError::bad_request("expected events as text, got binary data");
                        if !self.send(&ServerEvent::error(&error, None)).await {
                            return End::Gone;
                        }
                    }
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                    Some(Ok(Message::Close(_))) | None => return End::Gone,
                    Some(Err(error)) => {
                        tracing::debug!("WebSocket: {error}");
                        return End::Close(close_code::POLICY, "the message is invalid or too large");
                    }
                },
                update = live.update() => {
                    let Some(update) = update else {
                        return End::Close(close_code::ERROR, "the model cannot be used");
                    };
                    let is_done = update == Update::Done;
                    for event in self.session.update(update) {
                        if !self.send(&event).await {
                            return End::Gone;
                        }
                    }
                    if is_stopping && is_done {
                        return End::Close(close_code::AWAY, "the server stops");
                    }
                }
                () = state.live().stopping(), if !is_stopping => {
                    is_stopping = true;
                    let is_manual = self.session.config().turn_detection.is_none();
                    // Audio that the client has not committed is dropped.
                    let clear = is_manual.then_some(Command::Clear);
                    let mut commands = clear.into_iter().chain([Command::Commit(None)]);
                    if commands.any(|command| live.inbox.push(command).is_err()) {
                        return End::Close(close_code::AWAY, "the server stops");
                    }
                }
                () = at(deadline) => {
                    let is_manual = self.session.config().turn_detection.is_none();
                    let has_work = self.session.is_busy() || !is_manual && live.inbox.n_pending() > 0;
                    if !has_work {
                        return End::Close(close_code::NORMAL, "the session was idle");
                    }
                    deadline = next_deadline();
                }
            }
        }
    }

    /// Takes a message of the client; tells if the client reads.
    async fn receive(&mut self, text: &str, live: &LiveSession) -> bool {
        let n_pending = live.inbox.n_pending();
        let actions = if text.len() > LARGE {
            blocking(|| self.session.receive(text, n_pending))
        } else {
            self.session.receive(text, n_pending)
        };
        for action in actions {
            let pushed = match action {
                Action::Send(event) => {
                    if !self.send(&event).await {
                        return false;
                    }
                    Ok(())
                }
                Action::Check { config, event_id } => {
                    let event = self.configure(*config, event_id, live).await;
                    if !self.send(&event).await {
                        return false;
                    }
                    Ok(())
                }
                Action::Audio(samples) => live.inbox.push(Command::Audio(samples)),
                Action::Commit(event_id) => live.inbox.push(Command::Commit(event_id)),
                Action::Clear => live.inbox.push(Command::Clear),
            };
            if let Err(error) = pushed
                && !self.send(&ServerEvent::error(&error, None)).await
            {
                return false;
            }
        }
        true
    }

    /// Applies a configuration; the answer to the client.
    async fn configure(
        &mut self,
        config: Config,
        event_id: Option<String>,
        live: &LiveSession,
    ) -> ServerEvent {
        let has_other_model = config.model != self.session.config().model;
        let checked = apply(&self.state, &config, has_other_model, live).await;
        self.session.configure(config, checked, event_id)
    }

    /// Sends an event; tells if the client reads. A write that takes too long fails.
    async fn send(&mut self, event: &ServerEvent) -> bool {
        self.socket.send(Message::Text(event.to_json().into())).await.is_ok()
    }
}

/// Checks the model of a configuration and gives it to the live stream.
async fn apply(
    state: &AppState,
    config: &Config,
    has_other_model: bool,
    live: &LiveSession,
) -> ApiResult<()> {
    if has_other_model {
        state.models().check::<Whisper>(config.model.as_deref()).await?;
    }
    live.inbox.push(Command::Setup(Box::new(Setup::of(config)?)))
}

/// Waits until `deadline`; without one forever.
async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
