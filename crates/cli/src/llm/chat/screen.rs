//! Display of an answer on standard output.

use std::io;

use console::Term;
use stonechat::llm::chat::{ChatEvent, ChatMessage};

use super::thinking::View;
use super::word_wrap::WordWrap;
use crate::print;

/// Answer on standard output.
pub(super) struct Screen {
    view: View,
    wrap: WordWrap,
}

impl Screen {
    pub(super) fn new(view: View) -> Self {
        let terminal = Term::stdout();
        let width = terminal.is_term().then(|| usize::from(terminal.size().1));
        Self { view, wrap: WordWrap::new(width) }
    }

    /// Prints parts, and collects them.
    pub(super) fn show(
        &mut self,
        events: Vec<ChatEvent>,
        message: &mut ChatMessage,
    ) -> io::Result<()> {
        for event in events {
            message.push(&event);
            match &event {
                ChatEvent::Reasoning(text) => print(&self.view.push(text))?,
                other => print(&(self.view.end() + &self.wrap.push(other.text())))?,
            }
        }
        Ok(())
    }

    pub(super) fn end(&mut self) -> io::Result<()> {
        print(&(self.view.end() + &self.wrap.flush() + "\n"))
    }
}
