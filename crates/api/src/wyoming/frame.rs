//! Frames: a header line with the lengths of the data and the payload that follow it.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Maximum bytes of a header line. Old clients send the data within it.
const MAX_HEADER: usize = 64 << 10;
/// Maximum bytes of the data.
const MAX_DATA: usize = 256 << 10;
/// Maximum bytes of the payload: 20 s of 48 kHz stereo.
const MAX_PAYLOAD: usize = 4 << 20;

/// Event as it was received.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Frame {
    /// Type.
    pub kind: String,
    /// Fields.
    pub data: Map<String, Value>,
    /// Bytes, such as those of audio.
    pub payload: Vec<u8>,
}

/// Bytes that are no event. The rest of the stream cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A part exceeds its limit.
    #[error("{part}: expected at most {max} bytes, got {got}")]
    TooLong {
        /// Part of the frame.
        part: &'static str,
        /// Limit.
        max: usize,
        /// Length, or the bytes so far of a header.
        got: usize,
    },
    /// A part is no JSON, or lacks a field.
    #[error("{part}: {reason}")]
    Invalid {
        /// Part of the frame.
        part: &'static str,
        /// Cause.
        reason: String,
    },
}

#[derive(Debug, Deserialize)]
struct Header {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    data: Option<Map<String, Value>>,
    #[serde(default)]
    data_length: Option<usize>,
    #[serde(default)]
    payload_length: Option<usize>,
}

/// Reads frames from bytes that arrive in any pieces. It holds at most the bytes of one frame and of one piece.
#[derive(Debug, Default)]
pub struct FrameReader {
    bytes: Vec<u8>,
    /// Bytes that were searched for the end of the header line.
    n_searched: usize,
    /// Header of the current frame, and its length with the line end.
    header: Option<(Header, usize)>,
}

impl FrameReader {
    /// Appends bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Takes the next whole frame.
    ///
    /// # Errors
    /// If the bytes are no frame, or exceed a limit, which is known before they have all arrived.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        if self.header.is_none() && !self.read_header()? {
            return Ok(None);
        }
        let Some((header, start)) = &self.header else { return Ok(None) };
        let n_data = header.data_length.unwrap_or_default();
        let n_payload = header.payload_length.unwrap_or_default();
        let end = start + n_data + n_payload;
        if self.bytes.len() < end {
            return Ok(None);
        }
        let (data, payload) = self.bytes[*start..end].split_at(n_data);
        let mut fields = match n_data {
            0 => Map::new(),
            _ => parse("data", data)?,
        };
        let payload = payload.to_vec();
        self.bytes.drain(..end);
        let Some((header, _)) = self.header.take() else { return Ok(None) };
        let mut data = header.data.unwrap_or_default();
        data.append(&mut fields);
        Ok(Some(Frame { kind: header.kind, data, payload }))
    }

    /// Reads the header line; tells if it is whole.
    fn read_header(&mut self) -> Result<bool, FrameError> {
        let too_long = |part, max, got| Err(FrameError::TooLong { part, max, got });
        let line_end = self.bytes[self.n_searched..].iter().position(|&byte| byte == b'\n');
        let Some(line_end) = line_end.map(|at| at + self.n_searched) else {
            self.n_searched = self.bytes.len();
            return match self.n_searched {
                got if got > MAX_HEADER => too_long("header", MAX_HEADER, got),
                _ => Ok(false),
            };
        };
        self.n_searched = 0;
        if line_end > MAX_HEADER {
            return too_long("header", MAX_HEADER, line_end);
        }
        let header: Header = parse("header", &self.bytes[..line_end])?;
        for (part, max, got) in [
            ("data", MAX_DATA, header.data_length),
            ("payload", MAX_PAYLOAD, header.payload_length),
        ] {
            if let Some(got) = got.filter(|&got| got > max) {
                return too_long(part, max, got);
            }
        }
        self.header = Some((header, line_end + 1));
        Ok(true)
    }
}

fn parse<'a, T: Deserialize<'a>>(part: &'static str, bytes: &'a [u8]) -> Result<T, FrameError> {
    serde_json::from_slice(bytes)
        .map_err(|error| FrameError::Invalid { part, reason: error.to_string() })
}

/// Header of an answer.
#[derive(Debug, Serialize)]
struct AnswerHeader<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    version: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_length: Option<usize>,
}

/// Bytes of an event without a payload.
pub(super) fn encode(kind: &str, data: &impl Serialize) -> Vec<u8> {
    // Structures of texts, numbers and lists are always JSON.
    let data = serde_json::to_vec(data).unwrap_or_default();
    let data_length = Some(data.len()).filter(|_| data != b"{}" && !data.is_empty());
    let header = AnswerHeader { kind, version: env!("CARGO_PKG_VERSION"), data_length };
    let mut bytes = serde_json::to_vec(&header).unwrap_or_default();
    bytes.push(b'\n');
    if data_length.is_some() {
        bytes.extend(data);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Frame, FrameError, FrameReader};

    fn frames(bytes: &[u8], n_bytes: usize) -> Result<Vec<Frame>, FrameError> {
        let (mut reader, mut frames) = (FrameReader::default(), Vec::new());
        for piece in bytes.chunks(n_bytes) {
            reader.push(piece);
            while let Some(frame) = reader.next_frame()? {
                frames.push(frame);
            }
        }
        assert!(reader.bytes.is_empty(), "{} bytes left", reader.bytes.len());
        Ok(frames)
    }

    #[test]
    fn frames_are_read_wherever_the_bytes_are_cut() {
        let bytes = b"{\"type\": \"describe\"}\n\
            {\"type\": \"audio-chunk\", \"data\": {\"rate\": 1, \"width\": 2}, \"data_length\": 13, \"payload_length\": 3}\n\
            {\"rate\": 800}a\nb\
            {\"type\": \"audio-stop\", \"data_length\": 0, \"payload_length\": null}\n";
        for n_bytes in 1..bytes.len() {
            let frames = frames(bytes, n_bytes).unwrap();
            let kinds: Vec<_> = frames.iter().map(|frame| frame.kind.as_str()).collect();
            assert_eq!(kinds, ["describe", "audio-chunk", "audio-stop"]);
            assert_eq!(json!(frames[1].data), json!({"rate": 800, "width": 2}));
            assert_eq!(frames[1].payload, b"a\nb");
        }
    }

    #[test]
    fn lengths_are_bounded_before_their_bytes_arrive() {
        let endless = vec![b' '; super::MAX_HEADER + 1];
        for (bytes, part) in [
            (endless, "header"),
            (b"{\"type\": \"a\", \"data_length\": 99999999}\n".to_vec(), "data"),
            (b"{\"type\": \"a\", \"payload_length\": 99999999}\n".to_vec(), "payload"),
        ] {
            let error = frames(&bytes, 4096).unwrap_err();
            assert!(
                matches!(error, FrameError::TooLong { part: got, .. } if got == part),
                "{error}"
            );
        }
    }

    #[test]
    fn other_bytes_are_refused() {
        for bytes in [
            &b"GET / HTTP/1.1\r\n"[..],
            b"{}\n",
            b"{\"type\": 5}\n",
            b"{\"type\": \"a\", \"data_length\": -1}\n",
            b"{\"type\": \"a\", \"data_length\": 2}\n[]",
        ] {
            let error = frames(bytes, 7).unwrap_err();
            assert!(matches!(error, FrameError::Invalid { .. }), "{error}");
        }
        let deep = [b"{\"type\": \"a\", \"data\": ", "[".repeat(500).as_bytes(), b"\n"].concat();
        assert!(frames(&deep, 100).is_err());
    }
}
