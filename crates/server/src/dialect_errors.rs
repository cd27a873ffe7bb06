//! Errors in the form of the API that a path belongs to, whoever makes them: a route, a layer, or the lack of a route.

use axum::body::Body;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use stonechat_api::ErrorShape;

use crate::{ApiError, trace};

/// Starts of paths whose errors have a form of their own.
const SHAPES: [(&str, ErrorShape); 4] = [
    ("/v1/messages", ErrorShape::Anthropic),
    ("/v1/responses", ErrorShape::Responses),
    ("/responses", ErrorShape::Responses),
    ("/api", ErrorShape::Ollama),
];

/// Form of the errors of a path.
fn shape(path: &str) -> Option<ErrorShape> {
    let is_of = |start: &str| {
        path.strip_prefix(start).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    SHAPES.iter().find(|(start, _)| is_of(start)).map(|&(_, shape)| shape)
}

/// Rewrites the body of an error for the API of its path.
pub(crate) async fn reshape(request: Request, next: Next) -> Response {
    let shape = shape(request.uri().path());
    let response = next.run(request).await;
    let (Some(shape), Some(error)) = (shape, response.extensions().get::<ApiError>()) else {
        return response;
    };
    let body = shape.body(error);
    trace::with_body(response, Body::from(body)).await
}

#[cfg(test)]
mod tests {
    use stonechat_api::ErrorShape;

    use super::shape;

    #[test]
    fn a_path_belongs_to_one_api() {
        assert_eq!(shape("/v1/messages/count_tokens"), Some(ErrorShape::Anthropic));
        assert_eq!(shape("/v1/responses"), Some(ErrorShape::Responses));
        assert_eq!(shape("/api/chat"), Some(ErrorShape::Ollama));
        assert_eq!(shape("/api"), Some(ErrorShape::Ollama));
        assert_eq!(shape("/apiary"), None);
        assert_eq!(shape("/v1/chat/completions"), None);
    }
}
