//! Invalid requests with their expected answers: a status, and an error in the form of the path's API.

use serde_json::{Value, json};

use super::bodies::with;
use super::dialects::check_error;
use super::{CONTEXT, raw};
use crate::load::client::{Recording, TRANSCRIPTIONS, form, multipart};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const ASR: &str = "/asr";
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
    path: &'static str,
    pub(super) bytes: Vec<u8>,
    pub(super) answer: Expected,
    /// Whether the metrics of `POST` requests count it.
    pub(super) reaches_route: bool,
}

impl Case {
    /// Error message for an unexpected answer. Bytes may be missing if the connection `was_reset`.
    pub(super) fn check(&self, answer: &[u8], was_reset: bool) -> Option<String> {
        let status = raw::status(answer);
        let is_right = match self.answer {
            Expected::Status(expected) => status == Some(expected),
            Expected::StatusOrClosed(expected) => status.is_none_or(|status| status == expected),
            Expected::Nothing => status.is_none(),
        };
        if !is_right {
            return Some(format!("{}: expected {:?}, got {status:?}", self.name, self.answer));
        }
        if !self.reaches_route || status.is_none() || was_reset {
            return None;
        }
        let error: Value =
            serde_json::from_slice(raw::body(answer).unwrap_or_default()).unwrap_or_default();
        let error = check_error(self.path, &error).err()?;
        Some(format!("{}: {error:#}", self.name))
    }
}

/// A whole `POST` request.
fn post_case(
    name: &'static str,
    path: &'static str,
    content_type: &str,
    body: &[u8],
    status: u16,
) -> Case {
    let bytes = raw::post(path, content_type, body);
    Case { name, path, bytes, answer: Expected::Status(status), reaches_route: true }
}

fn json_case(name: &'static str, path: &'static str, body: &str, status: u16) -> Case {
    post_case(name, path, "application/json", body.as_bytes(), status)
}

fn form_case(name: &'static str, content_type: &str, body: &[u8], status: u16) -> Case {
    post_case(name, TRANSCRIPTIONS, content_type, body, status)
}

/// All cases; `model` is a language model, uploads are made of `recording`.
pub(super) fn cases(model: &str, recording: &Recording) -> Vec<Case> {
    let mut cases = json_cases(model);
    cases.extend(dialect_cases(model));
    cases.extend(form_cases(recording));
    cases.extend(connection_cases(recording));
    cases
}

fn json_cases(model: &str) -> Vec<Case> {
    let user = json!([{"role": "user", "content": "a"}]);
    let body = |fields| with(json!({"model": model}), fields).to_string();
    let chat = |fields| body(with(json!({"messages": user, "max_tokens": 4}), fields));
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
        json_case("long prompt", COMPLETIONS, &body(json!({"prompt": too_long})), 400),
        json_case("unknown token", COMPLETIONS, &body(json!({"prompt": [4_000_000_000_u32]})), 400),
        json_case("large body", CHAT, &format!("\"{}\"", "a".repeat(MAX_BODY)), 413),
        json_case("unknown route", "/v1/nothing", "{}", 404),
        json_case("wrong method", "/metrics", "{}", 405),
        post_case("media type", CHAT, "image/png", b"{}", 415),
    ]
}

/// Errors of the other dialects.
fn dialect_cases(model: &str) -> Vec<Case> {
    const RESPONSES: &str = "/v1/responses";
    const MESSAGES: &str = "/v1/messages";
    let user = json!([{"role": "user", "content": "a"}]);
    let cases = [
        ("tools", CHAT, json!({"messages": user, "tools": [7]}), 400),
        ("required call", CHAT, json!({"messages": user, "tool_choice": "required"}), 400),
        ("no kind of an item", RESPONSES, json!({"input": [{"content": "a"}]}), 400),
        ("unknown response", RESPONSES, json!({"input": "a", "previous_response_id": "b"}), 404),
        ("no input", "/v1/responses/input_tokens", json!({}), 400),
        ("no limit of tokens", MESSAGES, json!({"messages": user}), 400),
        ("no list of messages", MESSAGES, json!({"messages": 5, "max_tokens": 4}), 400),
        ("no message", "/v1/messages/count_tokens", json!({"messages": 5}), 400),
        ("no messages of a list", "/api/chat", json!({"messages": 5}), 400),
        ("unknown option", "/api/chat", json!({"messages": user, "options": {"a": 1}}), 400),
        ("wrong effort", "/api/generate", json!({"prompt": "a", "think": 7}), 400),
        ("object to embed", "/api/embed", json!({"input": {"a": 1}}), 400),
        ("no documents", "/v1/rerank", json!({"query": "a", "documents": []}), 400),
    ];
    let case = |(name, path, fields, status): (_, _, Value, _)| {
        json_case(name, path, &with(json!({"model": model}), fields).to_string(), status)
    };
    cases.into_iter().map(case).collect()
}

fn form_cases(recording: &Recording) -> Vec<Case> {
    let (content_type, body) = multipart(recording);
    let noise = Recording { bytes: vec![0x5a; 5000], ..recording.clone() };
    let (noise_type, noise) = multipart(&noise);
    let empty = Recording { bytes: Vec::new(), ..recording.clone() };
    let (empty_type, empty) = multipart(&empty);
    let (asr_type, asr) =
        form(&[], "audio_file", &Recording { bytes: Vec::new(), ..recording.clone() });
    let no_file = "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--b--\r\n";
    vec![
        form_case("no boundary", "multipart/form-data", &body, 415),
        form_case("JSON as a form", "application/json", b"{}", 415),
        form_case("other boundary", "multipart/form-data; boundary=other", &body, 400),
        form_case("form without end", &content_type, &body[..body.len() / 2], 400),
        form_case("no file", "multipart/form-data; boundary=b", no_file.as_bytes(), 400),
        form_case("no audio", &noise_type, &noise, 400),
        form_case("empty file", &empty_type, &empty, 400),
        post_case("empty file of /asr", ASR, &asr_type, &asr, 400),
    ]
}

/// Bytes that are no HTTP, and requests that break off.
fn connection_cases(recording: &Recording) -> Vec<Case> {
    let (content_type, body) = multipart(recording);
    let upload = raw::post(TRANSCRIPTIONS, &content_type, &body);
    let chat = raw::post(CHAT, "application/json", &[b' '; 2000]);
    let case = |name, bytes: &[u8], answer, reaches_route| Case {
        name,
        path: "/",
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
        let is_right = |answer, got: &str, reaches_route| {
            let case =
                Case { name: "a", path: "/api/chat", bytes: Vec::new(), answer, reaches_route };
            case.check(got.as_bytes(), false).is_none()
        };
        let (none, error) = ("HTTP/1.1 400 a\r\n\r\n", "HTTP/1.1 400 a\r\n\r\n{\"error\":\"b\"}");
        assert!(is_right(Expected::Status(400), error, true));
        assert!(!is_right(Expected::Status(400), none, true));
        assert!(is_right(Expected::Status(400), none, false));
        assert!(!is_right(Expected::Status(404), error, true));
        assert!(!is_right(Expected::Status(400), "", true));
        assert!(is_right(Expected::StatusOrClosed(400), "", true));
        assert!(!is_right(Expected::StatusOrClosed(404), error, true));
        assert!(is_right(Expected::Nothing, "", true));
    }

    #[test]
    fn sizes_are_those_of_the_limits() {
        let recording =
            Recording { path: "a.wav".into(), bytes: vec![1; 100], model: "m".to_owned() };
        let cases = cases("m", &recording);
        let large = cases.iter().find(|case| case.name == "large body").unwrap();
        // One byte more would be left unread, and reset the connection before its answer is read.
        assert!((MAX_BODY + 1..MAX_BODY + 200).contains(&large.bytes.len()));
        assert!(
            cases.iter().all(|case| case.answer != Expected::Nothing || case.bytes.len() < 2000)
        );
    }
}
