//! Checks of a request before any handler sees it: host and origin on loopback, encoding, and the time of its body.

mod body;

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;

use axum::extract::{Request, State};
use axum::http::header::{CONNECTION, CONTENT_ENCODING, HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::{ApiError, ApiResult, AppState, ErrorResponse, ServerOptions, auth};

/// The two ends of a connection, an extension of its requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer {
    /// Address of the client; `None` for a unix socket.
    pub(crate) address: Option<SocketAddr>,
    /// Whether the socket listens on a loopback address.
    pub(crate) is_loopback: bool,
}

/// Refuses requests by their headers; answers 408 if the body does not arrive in time.
pub(crate) async fn check(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let options = state.options();
    let is_loopback = request.extensions().get().is_some_and(|peer: &Peer| peer.is_loopback);
    let is_public = auth::is_public(request.uri().path());
    let headers = request.headers();
    let site = if is_loopback && !is_public { check_site(headers, options) } else { Ok(()) };
    let checked = site.and_then(|()| check_encoding(headers));
    let (request, is_late) = body::timed(request, options);
    if let Err(error) = checked {
        return ErrorResponse(error).into_response();
    }
    let response = next.run(request).await;
    if !is_late.load(Ordering::Acquire) {
        return response;
    }
    let mut response = ErrorResponse(ApiError::body_timed_out()).into_response();
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Refuses compressed bodies, which no route decompresses.
fn check_encoding(headers: &HeaderMap) -> ApiResult<()> {
    let encodings = headers.get_all(CONTENT_ENCODING);
    let is_plain = |value: &&HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"identity");
    let Some(got) = encodings.iter().find(|value| !is_plain(value)) else { return Ok(()) };
    let got = String::from_utf8_lossy(got.as_bytes());
    Err(ApiError::content_encoding(&got))
}

/// Refuses pages of other sites, which a browser on this machine would let in: by their origin, and by a host whose name was
/// made to resolve to this machine. With API keys the host is free, as behind a proxy: such a page has no key.
fn check_site(headers: &HeaderMap, options: &ServerOptions) -> ApiResult<()> {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let host = headers.get(HOST).map(text);
    if let Some(host) = &host
        && options.api_keys.is_empty()
        && !is_local(host, options)
    {
        return Err(ApiError::forbidden(format!(
            "`Host`: expected localhost or an address of --host, got `{host}` (any host may be named if API keys are set)"
        )));
    }
    check_origin(headers, options)
}

/// Refuses pages of other sites. The browser of another machine asks no server about a WebSocket, unlike about other requests.
pub(crate) fn check_origin(headers: &HeaderMap, options: &ServerOptions) -> ApiResult<()> {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let host = headers.get(HOST).map(text);
    let Some(origin) = headers.get(ORIGIN).map(text) else { return Ok(()) };
    let is_listed = options.cors_origins.iter().any(|one| one == "*" || *one == origin);
    if is_listed || is_own(&origin, host.as_deref(), options) {
        return Ok(());
    }
    Err(ApiError::forbidden(format!("`Origin`: expected one of --cors-origins, got `{origin}`")))
}

/// Tells if an origin is a page of this server, or of another one on this machine.
fn is_own(origin: &str, host: Option<&str>, options: &ServerOptions) -> bool {
    let Ok(uri) = origin.parse::<Uri>() else { return false };
    let Some(authority) = uri.authority() else { return false };
    let is_web = matches!(uri.scheme_str(), Some("http" | "https"));
    let is_same = host.is_some_and(|host| authority.as_str().eq_ignore_ascii_case(host));
    is_web && (is_same || is_loopback(authority.host()) || is_bound(authority.host(), options))
}

/// Tells if a host is one of this machine. A name without a dot is one of its network (a container, an upstream of nginx):
/// other networks cannot make it resolve.
fn is_local(host: &str, options: &ServerOptions) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host();
    let is_plain = !name.contains(['.', ':']) && !name.is_empty();
    !host.contains('@') && (is_loopback(name) || is_bound(name, options) || is_plain)
}

fn is_bound(name: &str, options: &ServerOptions) -> bool {
    let bare = |name: &str| name.trim_start_matches('[').trim_end_matches(']').to_lowercase();
    options.hosts.iter().any(|host| bare(host) == bare(name))
}

fn is_loopback(name: &str) -> bool {
    let name = name.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
    let is_address = name.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback());
    is_address || name == "localhost" || name.ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderMap;
    use axum::http::header::{CONTENT_ENCODING, HOST, ORIGIN};

    use super::{check_encoding, check_site};
    use crate::ServerOptions;

    fn status(host: &str, origin: &str, options: &ServerOptions) -> u16 {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, host.parse().unwrap());
        if !origin.is_empty() {
            headers.insert(ORIGIN, origin.parse().unwrap());
        }
        check_site(&headers, options).map_or_else(|error| error.status(), |()| 200)
    }

    #[test]
    fn hosts_are_those_of_this_machine() {
        let options = ServerOptions::default();
        for host in ["localhost", "LOCALHOST:8080", "127.0.0.1:1", "[::1]:8080", "a", "x.localhost"]
        {
            assert_eq!(status(host, "", &options), 200, "{host}");
        }
        for host in ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "10.0.0.1"] {
            assert_eq!(status(host, "", &options), 403, "{host}");
        }
        let options = ServerOptions { api_keys: vec!["k".to_owned()], ..options };
        assert_eq!(status("proxy.example", "https://proxy.example", &options), 200);
        assert_eq!(status("proxy.example", "https://evil.example", &options), 403);
    }

    #[test]
    fn origins_are_listed_or_local() {
        let options = ServerOptions::default();
        for (origin, expected) in [
            ("http://localhost:3000", 200),
            ("http://127.0.0.1:8080", 200),
            ("http://[::1]:8080", 200),
            ("https://evil.example", 403),
            ("http://localhost.evil.example", 403),
            ("null", 403),
        ] {
            assert_eq!(status("localhost:8080", origin, &options), expected, "{origin}");
        }
        for listed in ["https://a.example", "*"] {
            let cors_origins = vec![listed.to_owned()];
            let options = ServerOptions { cors_origins, ..ServerOptions::default() };
            assert_eq!(status("localhost", "https://a.example", &options), 200, "{listed}");
        }
    }

    #[test]
    fn compressed_bodies_are_refused() {
        for (encoding, expected) in [("identity", 200), ("gzip", 415), ("br", 415)] {
            let headers = HeaderMap::from_iter([(CONTENT_ENCODING, encoding.parse().unwrap())]);
            let status = check_encoding(&headers);
            let status = status.map_or_else(|error| error.status(), |()| 200);
            assert_eq!(status, expected, "{encoding}");
        }
    }
}
