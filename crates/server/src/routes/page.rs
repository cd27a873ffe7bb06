//! `/`: the page for browsers, `Ollama is running` for other clients. `/web/`: the npm package, from which the page takes its
//! engine in the browser.
//!
//! Both are public: keys are for the API that the page calls. The headers isolate the page, so that the engine has threads.

use axum::Router;
use axum::extract::{Path, RawQuery, State};
use axum::http::header::{
    ACCEPT, CONTENT_SECURITY_POLICY, HeaderName, REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::static_files::{PAGE, StaticFile};
use crate::{ApiError, AppState, ErrorResponse, ServerOptions};

const INDEX: &str = "index.html";
const FOLDER: &str = "/web/";
/// Answer by which clients of Ollama know a server.
const OLLAMA: &str = "Ollama is running";

/// Policy of the page with the engine of a server alone.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    img-src 'self' data: blob:; media-src 'self' blob:; connect-src 'self'; worker-src 'self'; \
    manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// Policy of the page with the package: it compiles WebAssembly, starts workers, and downloads models.
const PACKAGE_POLICY: &str = "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; \
    style-src 'self'; img-src 'self' data: blob:; media-src 'self' blob:; \
    connect-src 'self' https: blob: data:; worker-src 'self' blob:; manifest-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Headers of every file.
const HEADERS: [(HeaderName, &str); 5] = [
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-embedder-policy"), "require-corp"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (REFERRER_POLICY, "no-referrer"),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
];

/// Routes of what the options switch on.
pub(crate) fn router(options: &ServerOptions) -> Router<AppState> {
    let mut router = Router::new().route("/", get(root));
    if options.page {
        for name in PAGE.keys().copied() {
            let file = async move |State(state), RawQuery(query), headers: HeaderMap| {
                page_file(&state, name, query.as_deref(), &headers)
            };
            router = router.route(&format!("/{name}"), get(file));
        }
    }
    if options.web_package.is_some() {
        router = router.route("/web/{name}", get(package_file));
    }
    router
}

/// Tells if a path is one of the static files, which need no key.
pub(crate) fn is_static(path: &str, options: &ServerOptions) -> bool {
    let is_page =
        || path.strip_prefix('/').is_some_and(|name| name.is_empty() || PAGE.contains_key(name));
    options.page && is_page() || options.web_package.is_some() && path.starts_with(FOLDER)
}

/// The page for browsers, and the answer of Ollama for others, which probe a server with it.
async fn root(State(state): State<AppState>, headers: HeaderMap) -> Response {
    let accepts = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    // The worker of the page fetches it for offline use, without that type.
    let is_browser = accepts.into_iter().any(|value| value.contains("text/html"))
        || headers.contains_key("sec-fetch-mode");
    let mut response = match (is_browser, state.options().page) {
        (true, true) => page_file(&state, INDEX, None, &headers),
        (true, false) => ErrorResponse(ApiError::not_found("no page")).into_response(),
        (false, _) => OLLAMA.into_response(),
    };
    response.headers_mut().append(VARY, HeaderValue::from_static("accept"));
    response
}

fn page_file(state: &AppState, name: &str, query: Option<&str>, headers: &HeaderMap) -> Response {
    match PAGE.get(name) {
        Some(file) => respond(state, file, headers, is_current(name, query)),
        None => ErrorResponse(ApiError::not_found(format!("no file {name}"))).into_response(),
    }
}

/// Tells if a query names the content of a file as the page does. Another one comes from another version of the page.
fn is_current(name: &str, query: Option<&str>) -> bool {
    let index = EMBEDDED_INDEX.as_bytes();
    let reference =
        query.filter(|query| query.len() < 64).map(|query| format!("\"{name}?{query}\""));
    reference.is_some_and(|reference| {
        index.windows(reference.len()).any(|window| window == reference.as_bytes())
    })
}

/// Page with the references to its files, which have their content hashes.
const EMBEDDED_INDEX: &str = include_str!("../page/index.html");

async fn package_file(
    State(state): State<AppState>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Response {
    let file = state.options().web_package.as_ref().and_then(|package| package.file(&name));
    match file {
        Some(file) => respond(&state, file, &headers, false),
        None => ErrorResponse(ApiError::not_found("no such file of the package")).into_response(),
    }
}

fn respond(
    state: &AppState,
    file: &StaticFile,
    request: &HeaderMap,
    is_immutable: bool,
) -> Response {
    let has_package = state.options().web_package.is_some();
    let policy = if has_package { PACKAGE_POLICY } else { POLICY };
    let mut response = file.respond(request, is_immutable);
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    headers.extend(HEADERS.map(|(name, value)| (name, HeaderValue::from_static(value))));
    response
}

#[cfg(test)]
mod tests {
    use super::{EMBEDDED_INDEX, is_current};

    #[test]
    fn queries_of_the_page_are_current() {
        let (_, rest) = EMBEDDED_INDEX.split_once("app.js?").unwrap();
        let (query, _) = rest.split_once('"').unwrap();
        assert!(is_current("app.js", Some(query)));
        for (name, query) in [
            ("app.css", Some(query)),
            ("app.js", None),
            ("app.js", Some("")),
            ("app.js", Some("v=0000000000000000")),
        ] {
            assert!(!is_current(name, query), "{name} {query:?}");
        }
    }
}
