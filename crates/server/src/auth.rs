//! API keys: `Authorization: Bearer KEY` or `X-Api-Key: KEY`; a WebSocket of a browser has it in a subprotocol. A client secret is
//! a key of live sessions alone.

use std::path::Path;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use axum::http::{HeaderMap, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use subtle::{Choice, ConstantTimeEq};

use crate::client_secrets::SecretConfig;
use crate::routes::{page, realtime};
use crate::{ApiError, AppState, ErrorResponse};

/// Routes that need no key: probes.
const PUBLIC: [&str; 2] = ["/health", "/v1/health"];

/// Refuses requests without a key, but for public routes and `OPTIONS`, which browsers send without one.
pub(crate) async fn check(
    State(state): State<AppState>,
    mut request: Request,
    next: Next,
) -> Response {
    let keys = state.credentials().keys();
    let path = request.uri().path();
    let is_free = request.method() == Method::OPTIONS
        || is_public(path)
        || page::is_static(path, state.options());
    let secrets = state.credentials().secrets();
    let takes_secrets = realtime::PATHS.contains(&path);
    let secret = takes_secrets.then(|| secrets.find(sent(request.headers()), Instant::now()));
    let secret = secret.flatten();
    if !keys.is_empty() && !is_free && secret.is_none() && !has_key(request.headers(), &keys) {
        return ErrorResponse(ApiError::unauthorized()).into_response();
    }
    if let Some(config) = secret {
        request.extensions_mut().insert(SecretConfig(config));
    }
    next.run(request).await
}

/// Tells if a route is a probe.
pub(crate) fn is_public(path: &str) -> bool {
    PUBLIC.contains(&path)
}

/// Start of the subprotocol with the key: browsers set no headers of a WebSocket.
const KEY_PROTOCOL: &str = "openai-insecure-api-key.";

fn has_key(headers: &HeaderMap, keys: &[String]) -> bool {
    key_of(headers, keys).is_some()
}

/// Key of a request that is one of `keys`.
pub(crate) fn key_of<'a>(headers: &'a HeaderMap, keys: &[String]) -> Option<&'a [u8]> {
    sent(headers).find(|key| is_one_of(key, keys))
}

/// Keys that a client sends, at most one in each place.
fn sent(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.as_bytes().split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then_some(key)
    });
    let header = headers.get("x-api-key").map(|value| value.as_bytes());
    let protocols = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter();
    let protocols = protocols.filter_map(|value| value.to_str().ok());
    let mut protocols = protocols.flat_map(|value| value.split(',')).map(str::trim);
    let protocol = protocols.find_map(|name| name.strip_prefix(KEY_PROTOCOL)).map(str::as_bytes);
    [bearer, header, protocol].into_iter().flatten()
}

/// Compares with every key, each in a time that depends on lengths alone.
fn is_one_of(key: &[u8], keys: &[String]) -> bool {
    // An empty key opens nothing.
    let keys = keys.iter().filter(|known| !known.trim().is_empty());
    let equal = keys.map(|known| known.as_bytes().ct_eq(key));
    equal.fold(Choice::from(0), |found, equal| found | equal).into()
}

/// Reads a file of keys, one per line; empty lines and lines that begin with `#` are ignored.
///
/// # Errors
/// If the file cannot be read.
pub fn read_keys(path: &Path) -> std::io::Result<Vec<String>> {
    let text = std::fs::read_to_string(path)?;
    let lines = text.lines().map(str::trim);
    let keys = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    Ok(keys.map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderMap;

    use super::{has_key, read_keys};

    #[test]
    fn keys_are_in_either_header() {
        let keys = ["first".to_owned(), "second".to_owned()];
        let headers = |name: &'static str, value: &str| {
            HeaderMap::from_iter([(name.parse().unwrap(), value.parse().unwrap())])
        };
        for (name, value, expected) in [
            ("authorization", "Bearer second", true),
            ("authorization", "bearer first", true),
            ("authorization", "Bearer secon", false),
            ("authorization", "Bearer second ", false),
            ("authorization", "Basic first", false),
            ("authorization", "Bearer", false),
            ("authorization", "Bearer ", false),
            ("x-api-key", "first", true),
            ("x-api-key", "Bearer first", false),
            ("x-api-key", "", false),
            ("sec-websocket-protocol", "realtime, openai-insecure-api-key.second", true),
            ("sec-websocket-protocol", "openai-insecure-api-key.secon,realtime", false),
            ("sec-websocket-protocol", "second", false),
            ("sec-websocket-protocol", "openai-insecure-api-key.", false),
        ] {
            assert_eq!(has_key(&headers(name, value), &keys), expected, "{name}: {value}");
        }
        assert!(!has_key(&HeaderMap::new(), &keys));
        let empty = [String::new(), " ".to_owned()];
        assert!(!has_key(&headers("x-api-key", ""), &empty));
        assert!(!has_key(&headers("authorization", "Bearer "), &empty));
    }

    #[test]
    fn a_file_has_a_key_a_line() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "# keys\n one \r\n\ntwo\n").unwrap();
        assert_eq!(read_keys(file.path()).unwrap(), ["one", "two"]);
    }
}
