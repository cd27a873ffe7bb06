//! Answers of lines, each a JSON object.

use std::convert::Infallible;

use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use futures_core::Stream;
use futures_util::StreamExt;

/// Answers with lines as they come.
pub(crate) fn respond(lines: impl Stream<Item = String> + Send + 'static) -> Response {
    response(Body::from_stream(lines.map(|line| Ok::<_, Infallible>(line + "\n"))))
}

/// Answers with whole lines.
pub(crate) fn response(body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    let kind = HeaderValue::from_static("application/x-ndjson");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}
