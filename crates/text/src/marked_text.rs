//! Prompts in which only the text of the template becomes special tokens; see `special_texts`.

/// Text in which markers break the spelling of special tokens that are ordinary text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MarkedText {
    text: String,
    /// Empty: there is none.
    marker: String,
}

impl From<&str> for MarkedText {
    /// Text of which all special tokens are meant.
    fn from(text: &str) -> Self {
        Self { text: text.to_owned(), marker: String::new() }
    }
}

impl MarkedText {
    pub(crate) fn new(text: String, marker: String) -> Self {
        Self { text, marker }
    }

    /// The text without markers.
    pub fn text(&self) -> String {
        if self.marker.is_empty() { self.text.clone() } else { self.text.replace(&self.marker, "") }
    }

    /// The text with its markers.
    pub fn with_markers(&self) -> &str {
        &self.text
    }

    /// The text with its markers, and the marker; empty if there is none.
    pub(crate) fn parts(&self) -> (&str, &str) {
        (&self.text, &self.marker)
    }

    /// The text without `prefix`, if it begins with that special token.
    #[must_use]
    pub fn without_prefix(&self, prefix: &str) -> Self {
        let text = self.text.strip_prefix(prefix).unwrap_or(&self.text);
        Self { text: text.to_owned(), marker: self.marker.clone() }
    }
}
