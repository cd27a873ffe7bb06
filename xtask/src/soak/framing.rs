//! Answers as JSON frames: one reader for server-sent events, lines, and whole objects.

use std::io::Read;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use ureq::Body;
use ureq::http::Response;

use crate::load::sse::Parser;

/// Framing of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    /// Server-sent events.
    Events,
    /// Lines of JSON.
    Lines,
    /// One JSON value.
    Whole,
}

/// Answer, as far as its client has read it.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    /// Whether it says when to retry.
    pub(super) has_retry_after: bool,
    pub(super) frames: Vec<Value>,
    /// Whether the client has closed the connection, as planned.
    pub(super) is_aborted: bool,
}

impl Framing {
    fn media_type(self) -> &'static str {
        match self {
            Self::Events => "text/event-stream",
            Self::Lines => "application/x-ndjson",
            Self::Whole => "application/json",
        }
    }
}

impl Reply {
    /// Reads a response to its end, or up to `abort_after` frames. An error is one JSON value in every framing.
    pub(super) fn read(
        response: Response<Body>,
        framing: Framing,
        abort_after: Option<usize>,
    ) -> Result<Self> {
        let is_success = response.status().is_success();
        let framing = if is_success { framing } else { Framing::Whole };
        let headers = response.headers();
        let media_type = headers.get("content-type").and_then(|value| value.to_str().ok());
        let media_type = media_type.unwrap_or_default();
        let expected = framing.media_type();
        ensure!(media_type.starts_with(expected), "expected {expected}, got `{media_type}`");
        let has_retry_after = headers.contains_key("retry-after");
        let status = response.status().as_u16();
        let (frames, is_aborted) = read(response.into_body().into_reader(), framing, abort_after)?;
        Ok(Self { status, has_retry_after, frames, is_aborted })
    }
}

/// Frames of a body, to its end or up to `abort_after` of them, and whether they were as many.
pub(super) fn read(
    mut body: impl Read,
    framing: Framing,
    abort_after: Option<usize>,
) -> Result<(Vec<Value>, bool)> {
    let mut parser = FrameParser::new(framing);
    let (mut frames, mut buffer) = (Vec::new(), [0; 1 << 14]);
    loop {
        let read = body.read(&mut buffer);
        let n = read.with_context(|| format!("connection lost after {} frames", frames.len()))?;
        if n == 0 {
            frames.extend(parser.finish()?);
            return Ok((frames, false));
        }
        for frame in parser.push(&buffer[..n])? {
            frames.push(frame);
            if abort_after == Some(frames.len()) {
                return Ok((frames, true));
            }
        }
    }
}

/// Bytes in pieces of any size to frames.
#[derive(Debug)]
enum FrameParser {
    Events(Parser),
    /// Bytes of the line that has not ended.
    Lines(Vec<u8>),
    Whole(Vec<u8>),
}

impl FrameParser {
    fn new(framing: Framing) -> Self {
        match framing {
            Framing::Events => Self::Events(Parser::default()),
            Framing::Lines => Self::Lines(Vec::new()),
            Framing::Whole => Self::Whole(Vec::new()),
        }
    }

    fn push(&mut self, bytes: &[u8]) -> Result<Vec<Value>> {
        match self {
            Self::Events(parser) => parser.push(bytes).into_iter().map(event).collect(),
            Self::Lines(rest) => {
                rest.extend_from_slice(bytes);
                let n = rest.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
                let lines: Vec<u8> = rest.drain(..n).collect();
                let lines = lines.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
                lines.map(json).collect()
            }
            Self::Whole(body) => {
                body.extend_from_slice(bytes);
                Ok(Vec::new())
            }
        }
    }

    fn finish(self) -> Result<Option<Value>> {
        match self {
            Self::Events(_) => Ok(None),
            Self::Lines(rest) => {
                ensure!(rest.is_empty(), "the last line has no end");
                Ok(None)
            }
            Self::Whole(body) => json(&body).map(Some),
        }
    }
}

/// Data of an event: JSON, or the text `[DONE]`.
fn event(data: String) -> Result<Value> {
    if data == "[DONE]" { Ok(data.into()) } else { json(data.as_bytes()) }
}

fn json(bytes: &[u8]) -> Result<Value> {
    serde_json::from_slice(bytes)
        .with_context(|| format!("expected JSON, got {:?}", String::from_utf8_lossy(bytes)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A body that comes in pieces of a size.
    struct Pieces<'a>(&'a [u8], usize);

    impl Read for Pieces<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let (piece, rest) = self.0.split_at(self.1.min(self.0.len()));
            buffer[..piece.len()].copy_from_slice(piece);
            self.0 = rest;
            Ok(piece.len())
        }
    }

    #[test]
    fn frames_are_read_wherever_the_bytes_are_cut() {
        for (framing, text, expected) in [
            (
                Framing::Events,
                ": ping\n\nevent: a\ndata: {\"a\":\"é\"}\n\ndata: [DONE]\n\n",
                vec![json!({"a": "é"}), json!("[DONE]")],
            ),
            (
                Framing::Lines,
                "{\"a\":\"é\"}\n{\"done\":true}\n",
                vec![json!({"a": "é"}), json!({"done": true})],
            ),
            (Framing::Whole, "{\n\"a\":\n1}\n", vec![json!({"a": 1})]),
        ] {
            for size in 1..=text.len() {
                let (frames, is_aborted) =
                    read(Pieces(text.as_bytes(), size), framing, None).unwrap();
                assert_eq!((&frames, is_aborted), (&expected, false), "pieces of {size} bytes");
            }
        }
    }

    #[test]
    fn a_client_goes_away_after_its_frames() {
        let lines = "1\n2\n3\n";
        let read = |n| read(lines.as_bytes(), Framing::Lines, Some(n)).unwrap();
        assert_eq!(read(2), (vec![json!(1), json!(2)], true));
        // The answer ends first.
        assert_eq!(read(4), (vec![json!(1), json!(2), json!(3)], false));
    }

    #[test]
    fn broken_bodies_are_errors() {
        for (framing, text) in [
            (Framing::Events, "data: {\n\n"),
            (Framing::Lines, "{}\n{\"a\""),
            (Framing::Lines, "[DONE]\n"),
            (Framing::Whole, ""),
            (Framing::Whole, "{}{}"),
        ] {
            assert!(read(text.as_bytes(), framing, None).is_err(), "{text:?}");
        }
    }
}
