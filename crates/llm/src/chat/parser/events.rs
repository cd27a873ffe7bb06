//! Parts of an answer as they become certain.

use crate::chat::ChatEvent;

/// Parts of one piece of text; neighbours of one kind are joined.
#[derive(Debug, Default)]
pub(super) struct Events {
    list: Vec<ChatEvent>,
}

impl Events {
    pub(super) fn reasoning(&mut self, text: &str) {
        match self.list.last_mut() {
            _ if text.is_empty() => {}
            Some(ChatEvent::Reasoning(last)) => last.push_str(text),
            _ => self.list.push(ChatEvent::Reasoning(text.to_owned())),
        }
    }

    pub(super) fn content(&mut self, text: &str) {
        match self.list.last_mut() {
            _ if text.is_empty() => {}
            Some(ChatEvent::Content(last)) => last.push_str(text),
            _ => self.list.push(ChatEvent::Content(text.to_owned())),
        }
    }

    pub(super) fn call(&mut self, index: usize, name: String, id: Option<String>) {
        self.list.push(ChatEvent::ToolCall { index, id, name });
    }

    pub(super) fn arguments(&mut self, index: usize, text: &str) {
        match self.list.last_mut() {
            _ if text.is_empty() => {}
            Some(ChatEvent::Arguments { index: last, fragment }) if *last == index => {
                fragment.push_str(text);
            }
            _ => self.list.push(ChatEvent::Arguments { index, fragment: text.to_owned() }),
        }
    }

    pub(super) fn into_list(self) -> Vec<ChatEvent> {
        self.list
    }
}
