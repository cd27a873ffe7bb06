//! Log of requests, their identifiers, metrics and traces; errors of the framework in the format of the API.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::body::{Body, HttpBody};
use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{ALLOW, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, SERVER};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use stonechat_api::ids::new_id;

use crate::incoming::Peer;
use crate::otlp::RequestTrace;
use crate::{ApiError, AppState, ErrorResponse};

/// Header of the identifier, in requests and responses.
static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Value of the header `Server`.
const SERVER_NAME: &str = concat!("stonechat/", env!("CARGO_PKG_VERSION"));

/// Maximum bytes of an identifier that a client sends; a longer one is replaced.
const MAX_ID: usize = 128;

/// Identifier of a request, from its header or new. Handlers get it as an `Extension`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestId(pub String);

tokio::task_local! {
    /// Name of the model of the running request, once it is known.
    static MODEL: Arc<OnceLock<String>>;
}

/// Records the model of the running request for its line in the log.
pub(crate) fn note_model(name: &str) {
    // A task outside of a request has no line in the log.
    let _ = MODEL.try_with(|model| model.set(name.to_owned()));
}

/// Runs a request; logs and counts it when its body has been sent or the client has gone.
pub(crate) async fn log(
    State(state): State<AppState>,
    mut request: Request,
    next: Next,
) -> Response {
    let start = Instant::now();
    let id = request.headers().get(&REQUEST_ID).and_then(|value| value.to_str().ok());
    let is_plain = |id: &&str| !id.is_empty() && id.len() <= MAX_ID;
    let id = id.filter(is_plain).map_or_else(|| new_id("req-"), str::to_owned);
    request.extensions_mut().insert(RequestId(id.clone()));
    let route = request.extensions().get::<MatchedPath>().map(|route| route.as_str().to_owned());
    let trace = route.as_deref().map(|route| RequestTrace::start(&state, &request, route, &id));
    let trace = trace.unwrap_or_default();
    request.extensions_mut().insert(trace.clone());
    let mut end = End {
        state,
        trace,
        model: Arc::default(),
        method: request.method().to_string(),
        path: request.uri().path().to_owned(),
        client: request.extensions().get().and_then(|peer: &Peer| peer.address),
        reason: None,
        route: route.unwrap_or_else(|| "unknown".to_owned()),
        id,
        start,
        status: None,
        is_whole: false,
    };
    let mut response =
        with_shape(MODEL.scope(Arc::clone(&end.model), next.run(request)).await).await;
    end.status = Some(response.status());
    end.reason = response.extensions().get().map(|error: &ApiError| error.message().to_owned());
    let headers = response.headers_mut();
    headers.insert(SERVER, HeaderValue::from_static(SERVER_NAME));
    if end.state.is_stopping() {
        // A proxy then sends its next request on another connection, to a server that does not stop.
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    if let Ok(id) = HeaderValue::from_str(&end.id) {
        headers.insert(&REQUEST_ID, id);
    }
    response.map(|body| {
        end.is_whole = body.is_end_stream();
        Body::new(Counted { body, end })
    })
}

/// Turns an error of the framework, which is plain text, into one of the API.
async fn with_shape(response: Response) -> Response {
    let status = response.status();
    let is_error = status.is_client_error() || status.is_server_error();
    let content_type = response.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let is_plain = content_type.is_none_or(|value| value.starts_with(b"text/plain"));
    if !is_error || !is_plain {
        return response;
    }
    let allow = response.headers().get(ALLOW).cloned();
    let text = axum::body::to_bytes(response.into_body(), 4096).await.unwrap_or_default();
    let text = String::from_utf8_lossy(&text).trim().to_owned();
    let text = if text.is_empty() {
        status.canonical_reason().unwrap_or("the request failed").to_owned()
    } else {
        text
    };
    let error = ApiError::of_status(status.as_u16(), text);
    let mut response = ErrorResponse(error).into_response();
    if let Some(allow) = allow {
        response.headers_mut().insert(ALLOW, allow);
    }
    response
}

/// Maximum bytes of the body of an error.
const MAX_ERROR_BODY: usize = 1 << 20;

/// A response, an error, with another body. The former body is read to its end: a body that is dropped before counts as a client
/// that went away.
pub(crate) async fn with_body(response: Response, body: Body) -> Response {
    let (mut parts, former) = response.into_parts();
    let _ = axum::body::to_bytes(former, MAX_ERROR_BODY).await;
    parts.headers.remove(CONTENT_LENGTH);
    Response::from_parts(parts, body)
}

/// A response on its way. Dropping it logs, counts and traces it.
struct End {
    state: AppState,
    trace: RequestTrace,
    model: Arc<OnceLock<String>>,
    method: String,
    client: Option<SocketAddr>,
    /// Message of an error.
    reason: Option<String>,
    path: String,
    route: String,
    id: String,
    start: Instant,
    /// `None` while the handler runs: the client has gone if it is dropped.
    status: Option<StatusCode>,
    is_whole: bool,
}

/// Status in log and metrics of a request whose client went away, that of nginx.
const CLIENT_GONE: u16 = 499;

impl Drop for End {
    fn drop(&mut self) {
        let duration: Duration = self.start.elapsed();
        let status = match self.status {
            Some(status) if self.is_whole => status.as_u16(),
            _ => CLIENT_GONE,
        };
        self.state.metrics().http(&self.method, &self.route, status, duration);
        self.trace.end(status, status == CLIENT_GONE);
        tracing::info!(
            id = self.id,
            client = self.client.map(|address| address.to_string()),
            method = self.method,
            path = self.path,
            model = self.model.get(),
            status,
            seconds = duration.as_secs_f64(),
            reason = self.reason,
            "request"
        );
    }
}

/// Body that notices its end.
struct Counted {
    body: Body,
    end: End,
}

impl HttpBody for Counted {
    type Data = axum::body::Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<Self::Data>, Self::Error>>> {
        let frame = std::pin::Pin::new(&mut self.body).poll_frame(context);
        if matches!(frame, std::task::Poll::Ready(None)) || self.body.is_end_stream() {
            self.end.is_whole = true;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.body.size_hint()
    }
}
