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
/// End of a header.
const MESSAGE: &str = "<|message|>";

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
        let Some(at) = rest.find(MESSAGE) else {
            let text = rest.trim_start();
            let starts = ["<|", "to=", "assistant"];
            let is_header =
                starts.iter().any(|start| text.starts_with(start) || start.starts_with(text));
            if (is_header || is_end) && rest.len() <= MAX_BYTES && (!is_end || is_header) {
                // Without its end a header has no content.
                let n = if is_end { rest.len() } else { 0 };
                return (n, Step::More);
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

    fn recipient(
        &mut self,
        rest: &str,
        is_end: bool,
        rules: &Rules,
        events: &mut Events,
    ) -> (usize, Step) {
        let Some((name, _)) = rest.split_once('\n') else {
            let is_name = rest.len() <= MAX_BYTES && !rest.contains(char::is_whitespace);
            if is_name && !is_end {
                return (0, Step::More);
            }
            self.state = State::Text(TextState::START.begun());
            return (0, Step::Next);
        };
        let n = name.len() + 1;
        if name == "all" {
            self.state = State::Text(TextState::START.begun());
        } else if rules.calls().is_some() && rules.is_name(name, true) {
            self.announce(name.to_owned(), None, events);
            self.state = State::Arguments(ArgumentsState::object(Literal::default()));
        } else {
            // Not a header: a prompt of Python in content.
            let marker = if self.has_message { ">>>" } else { "" };
            events.content(marker);
            self.state = State::Text(TextState::START.begun());
            return (0, Step::Next);
        }
        self.has_message = true;
        (n, Step::Next)
    }
}
