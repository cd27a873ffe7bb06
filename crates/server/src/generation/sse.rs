//! Streams of server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};

/// Source of the events of one answer. Dropping it cancels the request.
pub(crate) trait EventSource: Send + 'static {
    /// The next event; `None` at the end.
    fn next(&mut self) -> impl Future<Output = Option<Event>> + Send;
}

/// Answers with the events of a source. `ping` is the interval of comments while there are none.
pub(crate) fn respond(source: impl EventSource, ping: Option<Duration>) -> Response {
    let stream = futures_util::stream::unfold(source, |mut source| async move {
        let event = source.next().await?;
        Some((Ok::<_, Infallible>(event), source))
    });
    let stream = Sse::new(stream);
    let mut response = match ping {
        Some(interval) => stream.keep_alive(KeepAlive::new().interval(interval)).into_response(),
        None => stream.into_response(),
    };
    // nginx would collect the events.
    let no_buffering = HeaderName::from_static("x-accel-buffering");
    response.headers_mut().insert(no_buffering, HeaderValue::from_static("no"));
    response
}
