//! Reasoning and content between markers.

use super::events::Events;
use super::opening::Opening;
use super::rules::{Found, Rules, Search};
use super::{AnswerParser, MAX_SPACE, State, Step};
use crate::chat::syntax::Layout;

/// State in text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TextState {
    pub(super) is_reasoning: bool,
    space: Space,
}

/// White space at the start of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Space {
    /// Part of the text if more text follows.
    Kept,
    /// No part of the text.
    Dropped,
    /// The part has begun.
    Inside,
}

impl TextState {
    pub(super) const START: Self = Self { is_reasoning: false, space: Space::Kept };
    pub(super) const REASONING: Self = Self { is_reasoning: true, space: Space::Dropped };
    pub(super) const AFTER_CALL: Self = Self { is_reasoning: false, space: Space::Dropped };

    pub(super) fn begun(self) -> Self {
        Self { space: Space::Inside, ..self }
    }

    fn is_start(self) -> bool {
        self.space != Space::Inside
    }
}

impl AnswerParser {
    /// Goes on with reasoning or content up to a marker.
    pub(super) fn text(&mut self, rest: &str, rules: &Rules, events: &mut Events) -> (usize, Step) {
        let State::Text(state) = self.state else { return (0, Step::More) };
        let leading = rest.len() - rest.trim_start().len();
        if state.space == Space::Dropped && leading > 0 {
            return (leading, Step::Next);
        }
        if !state.is_reasoning && !rules.has_markers() {
            self.state = State::Text(state.begun());
            self.emit(false, rest, events);
            return (rest.len(), Step::Next);
        }
        let is_start = state.is_start() && leading <= MAX_SPACE;
        // An object at the start may be a call without a marker.
        if is_start && !state.is_reasoning && (rules.bare().is_some() || rules.allows_loose()) {
            let text = &rest[leading..];
            if text.starts_with(['{', '[']) && !rules.may_be_marker(text) {
                self.state = State::Opening(Opening {
                    back: state,
                    space: leading,
                    marker: 1,
                    is_next: false,
                    is_loose: rules.bare().is_none(),
                    json: None,
                });
                return (0, Step::Next);
            }
        }
        let (end, found) = match rules.search(rest, state.is_reasoning, is_start) {
            Search::At(at, n, found) => (at, Some((n, found))),
            Search::Until(at) => (at, None),
        };
        // White space before a marker is no part of the text.
        let text = &rest[..end];
        let space = text.len() - text.trim_end().len();
        let held = (end - space.min(MAX_SPACE)..=end).find(|&at| rest.is_char_boundary(at));
        let mut held = held.unwrap_or(end);
        if rules.syntax.layout == Layout::Harmony {
            held = end;
        }
        if held > 0 {
            self.emit(state.is_reasoning, &rest[..held], events);
            self.state = State::Text(state.begun());
        }
        let Some((n, found)) = found else { return (held, Step::More) };
        match found {
            Found::Reasoning => self.state = State::Text(TextState::REASONING),
            Found::Content | Found::Wrapper => self.state = State::Text(TextState::AFTER_CALL),
            Found::Message => self.state = State::Header,
            Found::Calls | Found::Loose => {
                let back = if held > 0 { state.begun() } else { state };
                let space = end - held;
                self.state = State::Opening(Opening {
                    back,
                    space,
                    marker: n,
                    is_next: false,
                    is_loose: found == Found::Loose,
                    json: None,
                });
                return (held, Step::Next);
            }
        }
        match found {
            // The space before a prompt of Python is content, should it be one.
            Found::Message if rules.syntax.layout == Layout::Recipients => (held, Step::Next),
            Found::Message if rest[end..].starts_with("<|channel|>") => (end, Step::Next),
            _ => (end + n, Step::Next),
        }
    }
}
