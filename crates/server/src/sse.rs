//! Streams of server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use futures_util::StreamExt;

/// Answers with events. `ping` is the interval of comments while there are none.
pub(crate) fn respond(
    events: impl Stream<Item = Event> + Send + 'static,
    ping: Option<Duration>,
) -> Response {
    let stream = Sse::new(events.map(Ok::<_, Infallible>));
    let mut response = match ping {
        Some(interval) => stream.keep_alive(KeepAlive::new().interval(interval)).into_response(),
        None => stream.into_response(),
    };
    // nginx would collect the events.
    let no_buffering = HeaderName::from_static("x-accel-buffering");
    response.headers_mut().insert(no_buffering, HeaderValue::from_static("no"));
    response
}
