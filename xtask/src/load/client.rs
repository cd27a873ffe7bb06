//! Requests of the load generator: streamed completions with a time stamp per event, uploads of recordings.
//!
//! One blocking thread serves one request: an event's time is taken when `read` returns its bytes, before they are
//! parsed, and the client waits for nothing else meanwhile.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use ureq::Agent;
use ureq::http::Response;

use super::Endpoint;
use super::sse::Parser;

/// Bytes of an error body that are read.
const MAX_ERROR_BYTES: u64 = 4096;
/// Route of uploads.
pub(crate) const TRANSCRIPTIONS: &str = "/v1/audio/transcriptions";

/// A server and what every request to it has.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    agent: Agent,
    /// `http://HOST:PORT` without `/v1`.
    base: String,
    api_key: Option<String>,
    /// Id of the model, as `/v1/models` gives it.
    pub(crate) model: String,
    pub(crate) endpoint: Endpoint,
}

/// End of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// The client closed the connection, as planned.
    Aborted,
    /// Message of the server or the connection.
    Failed(String),
}

/// A whole response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Whether it says when to retry.
    pub(crate) has_retry_after: bool,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    pub(crate) fn json(&self) -> Result<Value> {
        serde_json::from_str(&self.text).with_context(|| format!("expected JSON: {}", self.text))
    }

    /// Status and message of one that is no success.
    pub(crate) fn error(&self) -> String {
        let message = serde_json::from_str(&self.text).ok().and_then(|json| message_of(&json));
        format!("HTTP {}: {}", self.status, message.as_ref().unwrap_or(&self.text).trim())
    }
}

/// A streamed request that has ended.
#[derive(Debug, Clone)]
pub(crate) struct Stream {
    pub(crate) start: Instant,
    pub(crate) end: Instant,
    /// Status of the response; `None` without one.
    pub(crate) status: Option<u16>,
    /// Arrivals of the events that have text.
    pub(crate) events: Vec<Instant>,
    /// From the usage chunk.
    pub(crate) usage: Option<Usage>,
    pub(crate) outcome: Outcome,
}

/// Token counts of the server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: u64,
    pub(crate) cached_tokens: u64,
    pub(crate) completion_tokens: u64,
}

/// A request for a stream of tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Prompt<'a> {
    pub(crate) text: &'a str,
    pub(crate) max_tokens: usize,
    /// Events after which the client closes the connection.
    pub(crate) abort_after: Option<usize>,
    /// Start of the measured time; a request of an open loop starts at its scheduled arrival.
    pub(crate) start: Instant,
}

/// A finished upload.
#[derive(Debug, Clone)]
pub(crate) struct Upload {
    pub(crate) start: Instant,
    pub(crate) end: Instant,
    /// Seconds of audio and text, if the server accepted it.
    pub(crate) result: Result<(f64, String), String>,
}

/// A recording to upload.
#[derive(Debug, Clone)]
pub(crate) struct Recording {
    pub(crate) path: PathBuf,
    pub(crate) bytes: Vec<u8>,
    pub(crate) model: String,
}

/// Kind of a stream's event.
#[derive(Debug, PartialEq, Eq)]
enum Event {
    /// Text of one token or more.
    Text,
    /// Role, finish reason, or progress.
    Other,
    Error(String),
    End,
}

/// The URL without `/v1`.
fn base_of(url: &str) -> String {
    let base = url.trim_end_matches('/').trim_end_matches("/v1");
    if base.contains("://") { base.to_owned() } else { format!("http://{base}") }
}

impl Target {
    /// A server at `url`; the model is the first that it lists, if none is named.
    pub(crate) fn new(
        url: &str,
        api_key: Option<&str>,
        model: Option<&str>,
        endpoint: Endpoint,
        timeout: Duration,
    ) -> Result<Self> {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // The environment's proxy is no part of what is measured.
            .proxy(None)
            // A kept connection that the server closes meanwhile would count as an error.
            .max_idle_connections(0)
            .timeout_connect(Some(timeout))
            .timeout_recv_response(Some(timeout))
            .timeout_per_read(Some(timeout))
            .build();
        let mut target = Self {
            agent: Agent::new_with_config(config),
            base: base_of(url),
            api_key: api_key.map(str::to_owned),
            model: String::new(),
            endpoint,
        };
        target.model = match model {
            Some(model) => model.to_owned(),
            None => target.first_model()?,
        };
        Ok(target)
    }

    fn first_model(&self) -> Result<String> {
        let answer = self.get("/v1/models")?;
        let url = format!("{}/v1/models", self.base);
        ensure!(answer.is_success(), "{url}: {}", answer.error());
        let list = answer.json().with_context(|| url.clone())?;
        let id = list["data"][0]["id"].as_str();
        Ok(id.with_context(|| format!("{url}: expected a model, got {list}"))?.to_owned())
    }

    /// Host and port.
    pub(crate) fn address(&self) -> &str {
        self.base.split_once("://").map_or(&self.base[..], |(_, address)| address)
    }

    /// Reads a resource.
    pub(crate) fn get(&self, path: &str) -> Result<Answer> {
        let url = format!("{}{path}", self.base);
        let mut request = self.agent.get(&url);
        if let Some(key) = &self.api_key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        whole(request.call().with_context(|| format!("cannot reach {url}"))?)
    }

    /// Sends a body and waits for the whole response.
    pub(crate) fn send(&self, path: &str, content_type: &str, body: &[u8]) -> Result<Answer> {
        whole(self.post(path, content_type, body)?)
    }

    /// Path of the route of streams.
    pub(crate) fn path(&self) -> &'static str {
        match self.endpoint {
            Endpoint::Completions => "/v1/completions",
            Endpoint::Chat => "/v1/chat/completions",
        }
    }

    /// Sends a body.
    pub(crate) fn post(
        &self,
        path: &str,
        content_type: &str,
        body: &[u8],
    ) -> Result<Response<ureq::Body>, ureq::Error> {
        let mut request =
            self.agent.post(format!("{}{path}", self.base)).header("content-type", content_type);
        if let Some(key) = &self.api_key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        request.send(body)
    }

    /// Body of a request for a stream.
    pub(crate) fn body(&self, text: &str, max_tokens: usize) -> Value {
        let mut body = json!({
            "model": self.model,
            "max_tokens": max_tokens,
            "stream": true,
            "stream_options": {"include_usage": true},
            "temperature": 0.0,
            "seed": 1,
            "ignore_eos": true,
        });
        match self.endpoint {
            Endpoint::Completions => body["prompt"] = text.into(),
            Endpoint::Chat => body["messages"] = json!([{"role": "user", "content": text}]),
        }
        body
    }

    /// Sends a prompt and reads the stream to its end. `on_event` runs after each event with text, with the number of
    /// those so far.
    pub(crate) fn stream(&self, prompt: Prompt<'_>, on_event: &dyn Fn(usize)) -> Stream {
        let mut stream = Stream {
            start: prompt.start,
            end: prompt.start,
            status: None,
            events: Vec::new(),
            usage: None,
            outcome: Outcome::Done,
        };
        if let Err(error) = self.read_stream(prompt, on_event, &mut stream) {
            stream.outcome = Outcome::Failed(format!("{error:#}"));
        }
        stream.end = Instant::now();
        stream
    }

    fn read_stream(
        &self,
        prompt: Prompt<'_>,
        on_event: &dyn Fn(usize),
        stream: &mut Stream,
    ) -> Result<()> {
        let body = self.body(prompt.text, prompt.max_tokens).to_string();
        let response = self.post(self.path(), "application/json", body.as_bytes())?;
        stream.status = Some(response.status().as_u16());
        if !response.status().is_success() {
            bail!(whole(response)?.error());
        }
        let mut reader = response.into_body().into_reader();
        let mut parser = Parser::default();
        let mut buffer = [0; 1 << 14];
        let mut has_ended = false;
        loop {
            let n = match reader.read(&mut buffer) {
                Ok(n) => n,
                Err(_) if has_ended => return Ok(()),
                Err(error) => {
                    let n = stream.events.len();
                    return Err(error).with_context(|| format!("connection lost after {n} events"));
                }
            };
            let now = Instant::now();
            if n == 0 {
                let n = stream.events.len();
                ensure!(has_ended, "stream closed after {n} events without [DONE]");
                return Ok(());
            }
            for data in parser.push(&buffer[..n]) {
                match read_event(&data, &mut stream.usage)? {
                    Event::Text => {
                        stream.events.push(now);
                        on_event(stream.events.len());
                        if prompt.abort_after == Some(stream.events.len()) {
                            stream.outcome = Outcome::Aborted;
                            return Ok(());
                        }
                    }
                    Event::Error(message) => bail!(message),
                    Event::End => has_ended = true,
                    Event::Other => {}
                }
            }
        }
    }

    /// Uploads a recording for transcription and waits for the text.
    pub(crate) fn upload(&self, recording: &Recording) -> Upload {
        let start = Instant::now();
        let result = self.send_recording(recording).map_err(|error| format!("{error:#}"));
        Upload { start, end: Instant::now(), result }
    }

    fn send_recording(&self, recording: &Recording) -> Result<(f64, String)> {
        let (content_type, body) = multipart(recording);
        let answer = self.send(TRANSCRIPTIONS, &content_type, &body)?;
        ensure!(answer.is_success(), answer.error());
        let reply = answer.json()?;
        let written =
            reply["text"].as_str().with_context(|| format!("expected a text in {reply}"))?;
        Ok((reply["duration"].as_f64().unwrap_or(0.0), written.to_owned()))
    }
}

/// Content type and body of the upload.
pub(crate) fn multipart(recording: &Recording) -> (String, Vec<u8>) {
    let fields = [
        ("model", &recording.model[..]),
        ("response_format", "verbose_json"),
        ("temperature", "0"),
    ];
    form(&fields, "file", recording)
}

/// Content type and body of a form of fields and a file.
pub(crate) fn form(
    fields: &[(&str, &str)],
    file_field: &str,
    recording: &Recording,
) -> (String, Vec<u8>) {
    const BOUNDARY: &str = "stonechat-load-7c9e6679f4b2";
    let field = |(name, value): &(&str, &str)| {
        format!(
            "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n"
        )
    };
    let name = recording.path.file_name().unwrap_or(Path::new("audio").as_os_str());
    let name = name.to_string_lossy().replace('"', "_");
    let mut body: String = fields.iter().map(field).collect();
    body.push_str(&format!(
        "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{file_field}\"; filename=\"{name}\"\r\n\
         Content-Type: application/octet-stream\r\n\r\n"
    ));
    let mut body = body.into_bytes();
    body.extend_from_slice(&recording.bytes);
    body.extend_from_slice(format!("\r\n--{BOUNDARY}--\r\n").as_bytes());
    (format!("multipart/form-data; boundary={BOUNDARY}"), body)
}

/// Reads the body of a response. That of an error is kept as far as it came.
fn whole(mut response: Response<ureq::Body>) -> Result<Answer> {
    let (status, headers) = (response.status(), response.headers());
    let has_retry_after = headers.contains_key("retry-after");
    let mut text = String::new();
    let mut body = response.body_mut().as_reader();
    if status.is_success() {
        body.read_to_string(&mut text)?;
    } else {
        let _ = body.take(MAX_ERROR_BYTES).read_to_string(&mut text);
    }
    Ok(Answer { status: status.as_u16(), has_retry_after, text })
}

/// Message of an error in the shape of OpenAI, or a plain one.
fn message_of(json: &Value) -> Option<String> {
    let error = json.get("error")?;
    let text = error.as_str().or_else(|| error["message"].as_str());
    Some(text.map_or_else(|| error.to_string(), str::to_owned))
}

fn read_event(data: &str, usage: &mut Option<Usage>) -> Result<Event> {
    if data.trim() == "[DONE]" {
        return Ok(Event::End);
    }
    let json: Value =
        serde_json::from_str(data).with_context(|| format!("expected JSON, got {data:?}"))?;
    if let Some(message) = message_of(&json) {
        return Ok(Event::Error(message));
    }
    let count = |value: &Value| value.as_u64().unwrap_or(0);
    if let Some(counts) = json.get("usage").filter(|usage| usage.is_object()) {
        *usage = Some(Usage {
            prompt_tokens: count(&counts["prompt_tokens"]),
            cached_tokens: count(&counts["prompt_tokens_details"]["cached_tokens"]),
            completion_tokens: count(&counts["completion_tokens"]),
        });
    }
    let choice = &json["choices"][0];
    let delta = &choice["delta"];
    let texts = [&choice["text"], &delta["content"], &delta["reasoning_content"]];
    let has_text = texts.iter().any(|text| text.as_str().is_some_and(|text| !text.is_empty()));
    let has_call = delta["tool_calls"].as_array().is_some_and(|calls| !calls.is_empty());
    Ok(if has_text || has_call { Event::Text } else { Event::Other })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(data: &str, expected: Event) {
        assert_eq!(read_event(data, &mut None).unwrap(), expected, "{data}");
    }

    #[test]
    fn events_with_text_are_told_from_others() {
        check(r#"{"choices":[{"text":" a"}]}"#, Event::Text);
        check(r#"{"choices":[{"delta":{"content":"a"}}]}"#, Event::Text);
        check(r#"{"choices":[{"delta":{"reasoning_content":"a"}}]}"#, Event::Text);
        check(r#"{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}"#, Event::Text);
        check(r#"{"choices":[{"delta":{"role":"assistant","content":null}}]}"#, Event::Other);
        check(r#"{"choices":[{"delta":{},"finish_reason":"length"}]}"#, Event::Other);
        check(r#"{"choices":[]}"#, Event::Other);
        check("[DONE]", Event::End);
        check(r#"{"error":{"message":"no KV","code":500}}"#, Event::Error("no KV".to_owned()));
        check(r#"{"error":"busy"}"#, Event::Error("busy".to_owned()));
        assert!(read_event("{", &mut None).is_err());
    }

    #[test]
    fn usage_is_kept() {
        let mut usage = None;
        read_event(r#"{"choices":[],"usage":null}"#, &mut usage).unwrap();
        assert_eq!(usage, None);
        let data = r#"{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":5,
            "prompt_tokens_details":{"cached_tokens":3}}}"#;
        read_event(data, &mut usage).unwrap();
        let expected = Usage { prompt_tokens: 7, cached_tokens: 3, completion_tokens: 5 };
        assert_eq!(usage, Some(expected));
    }

    #[test]
    fn urls_lose_their_version() {
        assert_eq!(base_of("http://host:1/v1/"), "http://host:1");
        assert_eq!(base_of("host:1"), "http://host:1");
    }

    #[test]
    fn uploads_hold_the_file_between_boundaries() {
        let recording = Recording {
            path: "a/b.wav".into(),
            bytes: vec![0, 13, 10, 255],
            model: "m".to_owned(),
        };
        let (content_type, body) = multipart(&recording);
        let boundary = content_type.split_once("boundary=").unwrap().1;
        let text = String::from_utf8_lossy(&body);
        assert_eq!(text.matches(&format!("--{boundary}\r\n")).count(), 4);
        assert!(text.ends_with(&format!("--{boundary}--\r\n")));
        assert!(text.contains("filename=\"b.wav\"") && text.contains("verbose_json"));
        assert!(body.windows(4).any(|window| window == [0, 13, 10, 255]));
    }
}
