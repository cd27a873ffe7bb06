//! Parser of server-sent events: bytes in pieces of any size in, data of complete events out.
//!
//! Follows the WHATWG rules for `data` fields; `event`, `id` and `retry` fields and comments (pings) are dropped.

/// Parser of one stream.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    /// Bytes of the line that has not ended.
    line: Vec<u8>,
    /// Data lines of the event that has not ended.
    data: Option<String>,
    /// The last byte was a CR: a LF after it belongs to the same line end.
    after_cr: bool,
}

impl Parser {
    /// Data of the events that end within `bytes`.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut events = Vec::new();
        for &byte in bytes {
            let is_second_half = byte == b'\n' && self.after_cr;
            self.after_cr = byte == b'\r';
            match byte {
                _ if is_second_half => {}
                b'\n' | b'\r' => events.extend(self.end_line()),
                _ => self.line.push(byte),
            }
        }
        events
    }

    /// Handles the line; an empty one ends an event.
    fn end_line(&mut self) -> Option<String> {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            return self.data.take();
        }
        let line = String::from_utf8_lossy(&line);
        let (field, value) = line.split_once(':').unwrap_or((&line, ""));
        if field == "data" {
            let value = value.strip_prefix(' ').unwrap_or(value);
            match &mut self.data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                None => self.data = Some(value.to_owned()),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::Parser;

    /// The events of `text`, pushed whole and in pieces of every size.
    #[track_caller]
    fn check(text: &str, expected: &[&str]) {
        for size in 1..=text.len() {
            let mut parser = Parser::default();
            let events: Vec<String> =
                text.as_bytes().chunks(size).flat_map(|piece| parser.push(piece)).collect();
            assert_eq!(events, expected, "pieces of {size} bytes");
        }
    }

    #[test]
    fn events_end_in_an_empty_line() {
        check("data: {\"a\":1}\n\ndata: [DONE]\n\n", &["{\"a\":1}", "[DONE]"]);
        check("data: a\n\ndata: unfinished\n", &["a"]);
        check("data:no space\n\ndata:  two\n\n", &["no space", " two"]);
    }

    #[test]
    fn line_ends_are_lf_crlf_or_cr() {
        check("data: a\r\n\r\ndata: b\r\n\r\n", &["a", "b"]);
        check("data: a\r\rdata: b\r\r", &["a", "b"]);
    }

    #[test]
    fn comments_and_other_fields_are_dropped() {
        check(":\n\n: ping\n\nevent: token\nid: 3\nretry: 10\ndata: a\n\n", &["a"]);
        check("database: no\n\ndata\n\n", &[""]);
    }

    #[test]
    fn data_lines_are_joined() {
        check("data: a\ndata: b\n\n", &["a\nb"]);
    }

    #[test]
    fn characters_survive_a_cut() {
        check("data: é – 石\n\n", &["é – 石"]);
    }
}
