//! Parser of answers: text of the model to parts, whole or piece by piece.

use crate::chat::ChatEvent;

/// Parser of one answer. A clone parses another answer from the same point on.
#[derive(Debug, Clone, Default)]
pub struct AnswerParser {}

impl AnswerParser {
    /// Appends generated text, which may be cut anywhere, and returns the parts that are certain.
    pub fn push(&mut self, text: &str) -> Vec<ChatEvent> {
        if text.is_empty() { Vec::new() } else { vec![ChatEvent::Content(text.to_owned())] }
    }

    /// Parts that were held back. `is_complete`: the model has ended the answer itself, so that a call without its end
    /// marker is complete.
    pub fn finish(&mut self, is_complete: bool) -> Vec<ChatEvent> {
        let _ = is_complete;
        Vec::new()
    }
}
