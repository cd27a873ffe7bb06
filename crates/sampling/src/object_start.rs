//! Search for a JSON object at the start of a line by the text that it begins with, white space aside.
//!
//! ```text
//! text     ```json\n{\n  "name": "weather",\n …
//!                   '-------------------'  begins with {"name":"weather"
//! ```

use std::sync::Arc;

/// Maximum bytes of white space in the beginning of an object.
pub(crate) const MAX_SPACE: usize = 128;

/// Search for one of some beginnings, a byte at a time. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct ObjectStart {
    texts: Arc<[Box<[u8]>]>,
    /// Whether only white space has come on this line.
    is_line_start: bool,
    /// The object so far without white space; empty outside of one.
    begun: Vec<u8>,
    /// Bytes of the object so far.
    n: usize,
}

impl ObjectStart {
    /// Searches for objects that begin with one of `texts`, which have no white space.
    pub(crate) fn new<'a>(texts: impl Iterator<Item = &'a str>) -> Self {
        let texts = texts.map(|text| text.as_bytes().into()).collect();
        Self { texts, is_line_start: true, begun: Vec::new(), n: 0 }
    }

    /// Length of the longest text with its white space.
    pub(crate) fn reach(&self) -> usize {
        self.texts.iter().map(|text| text.len() + MAX_SPACE).max().unwrap_or(0)
    }

    /// Appends a byte. Returns the bytes of the object so far if it begins with one of the texts since this byte.
    pub(crate) fn push(&mut self, byte: u8) -> Option<usize> {
        let is_blank = byte.is_ascii_whitespace();
        let mut found = None;
        if !self.begun.is_empty() {
            self.append(byte);
            found = self.found();
        }
        if self.begun.is_empty() && byte == b'{' && self.is_line_start {
            self.append(byte);
            found = self.found();
        }
        self.is_line_start = byte == b'\n' || (self.is_line_start && is_blank);
        found
    }

    /// Forgets the text before.
    pub(crate) fn reset(&mut self) {
        self.stop();
        self.is_line_start = true;
    }

    fn append(&mut self, byte: u8) {
        self.n += 1;
        if !byte.is_ascii_whitespace() {
            self.begun.push(byte);
        }
        let is_beginning = self.texts.iter().any(|text| text.starts_with(&self.begun));
        if !is_beginning || self.n - self.begun.len() > MAX_SPACE {
            self.stop();
        }
    }

    fn found(&mut self) -> Option<usize> {
        let is_found = self.texts.iter().any(|text| **text == *self.begun);
        is_found.then_some(self.n).inspect(|_| self.stop())
    }

    fn stop(&mut self) {
        self.begun.clear();
        self.n = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_SPACE, ObjectStart};

    /// Starts of the objects that are found in `text`.
    fn starts(text: &str) -> Vec<usize> {
        let mut search = ObjectStart::new(["{\"name\":\"f\"", "{\"name\":\"go\""].into_iter());
        let ends = (1..).zip(text.bytes());
        ends.filter_map(|(end, byte)| search.push(byte).map(|n| end - n)).collect()
    }

    #[test]
    fn objects_at_the_start_of_a_line_are_found() {
        assert_eq!(starts("{\"name\":\"f\""), [0]);
        assert_eq!(starts(" \n {\n  \"name\" : \"go\","), [3]);
        assert_eq!(starts("```json\n{\"name\": \"f\"}\n{\"name\": \"go\"}"), [8, 22]);
        assert_eq!(starts("{\n{\"name\": \"f\""), [2]);
        for text in [
            "It is {\"name\": \"f\"",
            "{\"name\": \"g\"",
            "{\"name\": \"fo\"",
            "{\"age\": 3, \"name\": \"f\"",
            "[{\"name\": \"f\"",
            "x\n{\"name\"",
        ] {
            assert_eq!(starts(text), [0; 0], "{text:?}");
        }
        for (n, found) in [(MAX_SPACE, 1), (MAX_SPACE + 1, 0)] {
            assert_eq!(starts(&format!("{{{}\"name\":\"f\"", " ".repeat(n))).len(), found);
        }
    }

    #[test]
    fn a_reset_forgets_the_line() {
        let mut search = ObjectStart::new(["{}"].into_iter());
        assert!(search.push(b'x').is_none() && search.push(b'{').is_none());
        search.reset();
        assert!(search.push(b'{').is_none());
        assert_eq!(search.push(b'}'), Some(2));
    }
}
