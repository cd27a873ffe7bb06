//! JSON bodies over HTTP: an extractor with limits of size and media type, and a response.

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use axum::http::HeaderValue;
use axum::http::header::{CONTENT_TYPE, ORIGIN};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;
use stonechat_api::ParseBody;
use stonechat_api::json::from_bytes;

use crate::{ApiError, ApiResult, AppState, ErrorResponse, HandlerResult};

/// A JSON body, in both directions.
///
/// As an extractor: the content type is `application/json` or absent, or curl's default; at most [`ServerOptions::max_body_size`] bytes
/// and [`MAX_NESTING`](stonechat_api::json::MAX_NESTING) levels. As a response: `application/json` with status 200.
///
/// [`ServerOptions::max_body_size`]: crate::ServerOptions::max_body_size
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Json<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<AppState> for Json<T> {
    type Rejection = ErrorResponse;

    async fn from_request(request: Request, state: &AppState) -> HandlerResult<Self> {
        Ok(Self(from_bytes(&body_of(request, state).await?)?))
    }
}

/// A JSON body whose fields have passed the limits of [`stonechat_api`]; an extractor as [`Json`].
#[derive(Debug)]
pub(crate) struct Checked<T>(pub(crate) T);

impl<T: ParseBody> FromRequest<AppState> for Checked<T> {
    type Rejection = ErrorResponse;

    async fn from_request(request: Request, state: &AppState) -> HandlerResult<Self> {
        let body = body_of(request, state).await?;
        Ok(Self(T::parse(&body, &state.options().defaults())?))
    }
}

/// Bytes of a JSON body.
///
/// # Errors
/// 413 for a longer body than [`ServerOptions::max_body_size`](crate::ServerOptions::max_body_size), 415 for another media type.
async fn body_of(request: Request, state: &AppState) -> ApiResult<Bytes> {
    check_media_type(&request)?;
    read_body(request.into_body(), state.options().max_body_size).await
}

/// Refuses other media types than JSON. None, and curl's default for `-d`, pass as they do at llama-server, but not from a
/// browser: a page of any site may send those without a preflight request.
fn check_media_type(request: &Request) -> ApiResult<()> {
    let headers = request.headers();
    let is_browser = headers.contains_key(ORIGIN) || headers.contains_key("sec-fetch-site");
    let Some(got) = headers.get(CONTENT_TYPE) else {
        return if is_browser {
            Err(ApiError::media_type("application/json", "none"))
        } else {
            Ok(())
        };
    };
    let got = String::from_utf8_lossy(got.as_bytes());
    let essence = got.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_json = essence == "application/json" || essence.ends_with("+json");
    let is_default = essence == "application/x-www-form-urlencoded" && !is_browser;
    if is_json || is_default {
        return Ok(());
    }
    Err(ApiError::media_type("application/json", &got))
}

/// Reads a body of at most `limit` bytes.
///
/// # Errors
/// 413 for a longer body, 400 if the client breaks off.
pub(crate) async fn read_body(body: Body, limit: usize) -> ApiResult<Bytes> {
    axum::body::to_bytes(body, limit).await.map_err(|error| {
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            if cause.to_string().contains("length limit") {
                return ApiError::too_large(limit);
            }
            source = cause.source();
        }
        ApiError::bad_request(format!("the body ends early: {error}"))
    })
}

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        let body = match serde_json::to_vec(&self.0) {
            Ok(body) => body,
            Err(error) => {
                return ErrorResponse(ApiError::server(error.to_string())).into_response();
            }
        };
        response(body)
    }
}

/// Response with a JSON text.
pub(crate) fn response(body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
