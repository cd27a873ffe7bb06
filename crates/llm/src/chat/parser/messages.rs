//! Headers of the messages of an answer: gpt-oss and Functionary 3.2.
//!
//! ```text
//! gpt-oss        <|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>
//!                '----------------------- header -----------------------'
//! Functionary    f\n{"a": 1}>>>all\nHello
//! ```

use super::arguments::ArgumentsState;
use super::events::Events;
use super::literal::Literal;
use super::rules::Rules;
use super::text::TextState;
use super::{AnswerParser, State, Step};
use crate::chat::syntax::Layout;

/// Maximum bytes of a header.
const MAX_BYTES: usize = 512;
/// End of a header of gpt-oss.
const MESSAGE: &str = "<|message|>";
/// Start of a header of Functionary.
pub(super) const RECIPIENT: &str = ">>>";

impl AnswerParser {
    /// Goes on with the header of a message.
    pub(super) fn header(
        &mut self,
        rest: &str,
        is_end: bool,
        rules: &Rules,
        events: &mut Events,
    ) -> (usize, Step) {
        match rules.syntax.layout {
            Layout::Recipients => self.recipient(rest, is_end, rules, events),
            _ => self.harmony(rest, is_end, rules, events),
        }
    }

    fn harmony(
        &mut self,
        rest: &str,
        is_end: bool,
        rules: &Rules,
        events: &mut Events,
    ) -> (usize, Step) {
        let text = rest.trim_start();
        let starts = ["<|", "to=", "assistant"];
        let is_header =
            starts.iter().any(|start| text.starts_with(start) || start.starts_with(text));
        let limit = rest.floor_char_boundary(MAX_BYTES);
        let found = rest[..limit].find(MESSAGE).filter(|_| is_header);
        let Some(at) = found else {
            if is_header && rest.len() < MAX_BYTES {
                // Without its end a header has no content.
                return (if is_end { rest.len() } else { 0 }, Step::More);
            }
            self.state = State::Text(TextState::START);
            return (0, Step::Next);
        };
        let header = &rest[..at];
        let word = |text: &str| {
            let end = text.find(|c: char| c.is_whitespace() || c == '<').unwrap_or(text.len());
            text[..end].to_owned()
        };
        let channel = header.rsplit_once("<|channel|>").map(|(_, rest)| word(rest.trim_start()));
        let recipient = header.rsplit_once("to=").map(|(_, rest)| word(rest));
        let n = at + MESSAGE.len();
        let function = recipient.as_deref().map(|to| to.strip_prefix("functions.").unwrap_or(to));
        match (function, channel.as_deref()) {
            (Some(name), _) if rules.calls().is_some() && rules.is_name(name, true) => {
                self.announce(name.to_owned(), None, events);
                self.state = State::Arguments(ArgumentsState::object(Literal::default()));
            }
            // Calls of tools that nobody offered are thoughts, as analysis is.
            (Some(_), _) | (None, Some("analysis")) => {
                self.separate(events);
                self.state = State::Text(TextState::REASONING);
            }
            _ => self.state = State::Text(TextState::START.begun()),
        }
        (n, Step::Next)
    }

    /// Separates a second message of reasoning from the first.
    fn separate(&mut self, events: &mut Events) {
        if self.has_message && self.rules.splits_reasoning {
            events.reasoning("\n");
        }
        self.has_message = true;
    }

    /// A header and its marker, which the prompt has for the first message.
    fn recipient(
        &mut self,
        rest: &str,
        is_end: bool,
        rules: &Rules,
        events: &mut Events,
    ) -> (usize, Step) {
        let space = rest.len() - rest.trim_start().len();
        let start = match self.has_message {
            true => (space + RECIPIENT.len()).min(rest.len()),
            false => space,
        };
        let is_first = !std::mem::replace(&mut self.has_message, true);
        let text = &rest[start..];
        let end = text.find(|c: char| c.is_whitespace());
        let is_cut = end.is_none() && text.len() <= MAX_BYTES;
        if is_cut && !is_end {
            self.has_message = !is_first;
            return (0, Step::More);
        }
        let name = end.filter(|&end| text[end..].starts_with('\n')).map(|end| &text[..end]);
        match name {
            Some("all") => self.state = State::Text(TextState::START.begun()),
            Some(name) if rules.calls().is_some() && rules.is_name(name, true) => {
                self.announce(name.to_owned(), None, events);
                self.state = State::Arguments(ArgumentsState::object(Literal::default()));
            }
            // Not a header, but a prompt of Python.
            _ => {
                events.content(&rest[..start]);
                self.state = State::Text(TextState::START.begun());
                return (start, Step::Next);
            }
        }
        (start + name.map_or(0, |name| name.len() + 1), Step::Next)
    }
}
