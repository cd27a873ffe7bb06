//! Invalid requests with their expected answers.

use serde_json::json;

use super::{CONTEXT, raw};
use crate::load::client::{Recording, TRANSCRIPTIONS, multipart};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
/// `--max-body-size` of the server.
const MAX_BODY: usize = 1 << 20;

/// Answer to a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expected {
    Status(u16),
    /// This status, or a closed connection: the server need not read bytes that are no HTTP to their end.
    StatusOrClosed(u16),
    /// The client closes the connection first.
    Nothing,
}

/// A case.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) bytes: Vec<u8>,
    pub(super) answer: Expected,
    /// Whether the metrics of `POST` requests count it.
    pub(super) reaches_route: bool,
}

impl Case {
    /// Error message for an unexpected answer.
    pub(super) fn check(&self, status: Option<u16>) -> Option<String> {
        let is_right = match self.answer {
            Expected::Status(expected) => status == Some(expected),
            Expected::StatusOrClosed(expected) => status.is_none_or(|status| status == expected),
            Expected::Nothing => status.is_none(),
        };
        (!is_right).then(|| format!("{}: expected {:?}, got {status:?}", self.name, self.answer))
    }
}

/// A whole `POST` request.
fn post_case(name: &'static str, path: &str, content_type: &str, body: &[u8], status: u16) -> Case {
    let bytes = raw::post(path, content_type, body);
    Case { name, bytes, answer: Expected::Status(status), reaches_route: true }
}

fn json_case(name: &'static str, path: &str, body: &str, status: u16) -> Case {
    post_case(name, path, "application/json", body.as_bytes(), status)
}

fn form_case(name: &'static str, content_type: &str, body: &[u8], status: u16) -> Case {
    post_case(name, TRANSCRIPTIONS, content_type, body, status)
}

/// All cases; uploads are made of `recording`.
pub(super) fn cases(recording: &Recording) -> Vec<Case> {
    let mut cases = json_cases();
    cases.extend(form_cases(recording));
    cases.extend(connection_cases(recording));
    cases
}

fn json_cases() -> Vec<Case> {
    let chat = |fields: serde_json::Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 4});
        if let (Some(body), Some(fields)) = (body.as_object_mut(), fields.as_object()) {
            body.extend(fields.clone());
        }
        body.to_string()
    };
    let too_long: Vec<usize> = (0..=CONTEXT).map(|i| i % 50 + 4).collect();
    let nested = format!("{{\"messages\": {}{}}}", "[".repeat(100), "]".repeat(100));
    let schema = json!({"type": "json_schema", "json_schema": {"schema": {"type": "no type"}}});
    vec![
        json_case("no JSON", CHAT, "{\"messages\": [", 400),
        json_case("empty body", COMPLETIONS, "", 400),
        json_case("bytes", CHAT, "\u{0}\u{1}\u{2}", 400),
        json_case("wrong type", CHAT, "{\"messages\": 5}", 400),
        json_case("nested", CHAT, &nested, 400),
        json_case("no messages", CHAT, &chat(json!({"messages": []})), 400),
        json_case("choices", CHAT, &chat(json!({"n": 1000})), 400),
        json_case("negative tokens", CHAT, &chat(json!({"max_tokens": -7})), 400),
        json_case("grammar", CHAT, &chat(json!({"grammar": "root ::= ("})), 400),
        json_case("schema", CHAT, &chat(json!({"response_format": schema})), 400),
        json_case("long prompt", COMPLETIONS, &json!({"prompt": too_long}).to_string(), 400),
        json_case("unknown token", COMPLETIONS, "{\"prompt\": [4000000000]}", 400),
        json_case("large body", CHAT, &format!("\"{}\"", "a".repeat(MAX_BODY)), 413),
        json_case("unknown route", "/v1/nothing", "{}", 404),
        json_case("wrong method", "/metrics", "{}", 405),
        post_case("media type", CHAT, "image/png", b"{}", 415),
    ]
}

fn form_cases(recording: &Recording) -> Vec<Case> {
    let (content_type, body) = multipart(recording);
    let noise = Recording { bytes: vec![0x5a; 5000], ..recording.clone() };
    let (noise_type, noise) = multipart(&noise);
    let empty = Recording { bytes: Vec::new(), ..recording.clone() };
    let (empty_type, empty) = multipart(&empty);
    let no_file = "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--b--\r\n";
    vec![
        form_case("no boundary", "multipart/form-data", &body, 415),
        form_case("JSON as a form", "application/json", b"{}", 415),
        form_case("other boundary", "multipart/form-data; boundary=other", &body, 400),
        form_case("form without end", &content_type, &body[..body.len() / 2], 400),
        form_case("no file", "multipart/form-data; boundary=b", no_file.as_bytes(), 400),
        form_case("no audio", &noise_type, &noise, 400),
        form_case("empty file", &empty_type, &empty, 400),
    ]
}

/// Bytes that are no HTTP, and requests that break off.
fn connection_cases(recording: &Recording) -> Vec<Case> {
    let (content_type, body) = multipart(recording);
    let upload = raw::post(TRANSCRIPTIONS, &content_type, &body);
    let chat = raw::post(CHAT, "application/json", &[b' '; 2000]);
    let case = |name, bytes: &[u8], answer, reaches_route| Case {
        name,
        bytes: bytes.to_vec(),
        answer,
        reaches_route,
    };
    let headers = format!("GET /health HTTP/1.1\r\nA: {}\r\n\r\n", "a".repeat(1 << 20));
    let large = "POST /v1/audio/transcriptions HTTP/1.0\r\nContent-Length: 99999999999\r\nContent-Type: multipart/form-data; boundary=b\r\n\r\n";
    let chunks = "POST /v1/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n{}\r\n0\r\n\r\n";
    vec![
        case("TLS", b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", Expected::StatusOrClosed(400), false),
        case("no HTTP", b"hello\r\n\r\n", Expected::StatusOrClosed(400), false),
        case("long header", headers.as_bytes(), Expected::StatusOrClosed(431), false),
        case("large upload", large.as_bytes(), Expected::Status(413), true),
        case("bad chunks", chunks.as_bytes(), Expected::StatusOrClosed(400), true),
        case("no bytes", b"", Expected::Nothing, false),
        case("half of the headers", &chat[..30], Expected::Nothing, false),
        case("half of the body", &chat[..1500], Expected::Nothing, true),
        case("half of the upload", &upload[..upload.len() / 2], Expected::Nothing, true),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_compared_with_the_expected_ones() {
        let case = |answer| Case { name: "a", bytes: Vec::new(), answer, reaches_route: true };
        let is_right = |answer, status| case(answer).check(status).is_none();
        assert!(is_right(Expected::Status(400), Some(400)));
        assert!(!is_right(Expected::Status(400), Some(500)));
        assert!(!is_right(Expected::Status(400), None));
        assert!(is_right(Expected::StatusOrClosed(400), None));
        assert!(!is_right(Expected::StatusOrClosed(400), Some(200)));
        assert!(is_right(Expected::Nothing, None));
    }

    #[test]
    fn sizes_are_those_of_the_limits() {
        let recording =
            Recording { path: "a.wav".into(), bytes: vec![1; 100], model: "m".to_owned() };
        let cases = cases(&recording);
        let large = cases.iter().find(|case| case.name == "large body").unwrap();
        // One byte more would be left unread, and reset the connection before its answer is read.
        assert!((MAX_BODY + 1..MAX_BODY + 200).contains(&large.bytes.len()));
        assert!(
            cases.iter().all(|case| case.answer != Expected::Nothing || case.bytes.len() < 2000)
        );
    }
}
