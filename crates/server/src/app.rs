//! The router: routes of all groups, and the layers around them.
//!
//! From the outside in: log and metrics, panics as errors, CORS, hosts and bodies, API keys, routes.

use std::any::Any;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::header::{ALLOW, CONTENT_TYPE};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use crate::document::DOCUMENT;
use crate::{ApiError, AppState, ErrorResponse, auth, dialect_errors, incoming, routes, trace};

/// All routes of a server, with their layers.
pub fn router(state: AppState) -> Router {
    let router = Router::new()
        .merge(routes::health::router())
        .merge(routes::models::router())
        .merge(routes::props::router())
        .merge(routes::metrics::router())
        .merge(routes::tokenize::router())
        .merge(routes::template::router())
        .merge(routes::lora::router())
        .merge(routes::chat::router())
        .merge(routes::control::router())
        .merge(routes::anthropic::router())
        .merge(routes::responses::router())
        .merge(routes::completions::router())
        .merge(routes::completion::router())
        .merge(routes::embeddings::router())
        .merge(routes::rerank::router())
        .merge(routes::slots::router())
        .merge(routes::audio::router())
        .merge(routes::ollama::router())
        .merge(routes::ollama_manage::router())
        .merge(routes::ollama_models::router())
        .merge(routes::realtime::router())
        .merge(routes::client_secrets::router())
        .merge(routes::page::router(state.options()))
        .route("/openapi.json", get(document));
    let cors = cors(&state.options().cors_origins);
    let router = router
        .fallback(not_found)
        .method_not_allowed_fallback(wrong_method)
        // Extractors have limits of their own, which the options set.
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn_with_state(state.clone(), auth::check))
        .layer(from_fn_with_state(state.clone(), incoming::check))
        .layer(tower::util::option_layer(cors))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn_with_state(state.clone(), trace::log))
        .with_state(state);
    // The header with the allowed methods is added outside of the layers of a router.
    let router = Router::new().fallback_service(router).layer(from_fn(name_allowed));
    router.layer(from_fn(dialect_errors::reshape))
}

async fn document() -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], DOCUMENT)
}

async fn not_found(method: Method, uri: Uri) -> ErrorResponse {
    let path = uri.path();
    let path: String = path.chars().take(200).collect();
    ErrorResponse(ApiError::not_found(format!(
        "no route {method} {path}: `/openapi.json` lists the paths"
    )))
}

/// Answers 405 to an unsupported method; [`name_allowed`] adds the supported ones.
async fn wrong_method() -> StatusCode {
    StatusCode::METHOD_NOT_ALLOWED
}

/// Names the allowed methods, which the router writes into the header, in the error as well.
async fn name_allowed(request: Request, next: Next) -> Response {
    let method = request.method().clone();
    let response = next.run(request).await;
    if response.status() != StatusCode::METHOD_NOT_ALLOWED {
        return response;
    }
    let allowed = response.headers().get(ALLOW).and_then(|allowed| allowed.to_str().ok());
    let allowed = allowed.unwrap_or_default().split(',').map(str::trim);
    let allowed: Vec<&str> = allowed.filter(|name| *name != "HEAD").collect();
    let message =
        format!("{method} is not allowed for this path (allowed: {})", allowed.join(", "));
    let error = ErrorResponse(ApiError::of_status(response.status().as_u16(), message));
    let (error, body) = error.into_response().into_parts();
    let mut response = trace::with_body(response, body).await;
    response.headers_mut().extend(error.headers);
    response.extensions_mut().extend(error.extensions);
    response
}

fn panicked(panic: Box<dyn Any + Send + 'static>) -> Response {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default();
    tracing::error!("a request panicked: {text}");
    ErrorResponse(ApiError::server("internal error: see the log of the server")).into_response()
}

/// CORS for origins of browsers; `None` if there are none.
fn cors(origins: &[String]) -> Option<CorsLayer> {
    let any = origins.iter().any(|origin| origin == "*");
    let list = origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok());
    let list: Vec<_> = list.collect();
    if list.is_empty() {
        return None;
    }
    // Clients send headers of their own (`x-stainless-…`); `*` would not cover `authorization`.
    let layer = CorsLayer::new()
        .allow_methods([Method::GET, Method::POST, Method::DELETE, Method::OPTIONS])
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([HeaderName::from_static("x-request-id")]);
    let origin = if any { AllowOrigin::any() } else { AllowOrigin::list(list) };
    Some(layer.allow_origin(origin))
}
