//! Arguments after the header of a call, to JSON.

use serde_json::Value;

use super::events::Events;
use super::literal::{Literal, Progress, escape};
use super::pattern::{Match, match_any};
use super::rules::{Kind, Rules};
use super::{AnswerParser, State, Step};
use crate::chat::syntax::{Arguments, Form, Tags};

/// State of the arguments of a call.
#[derive(Debug, Clone)]
pub(super) enum ArgumentsState {
    /// Before an object.
    Object(Literal),
    /// Within an object, or keyword arguments.
    Literal(Literal),
    /// Between elements.
    Tags { is_first: bool },
    /// String in an element.
    Text { is_begun: bool },
    /// Other value in an element. It is kept until it is complete, and was searched up to `searched`.
    Value { kind: Kind, searched: usize },
    /// Malformed: passed on as it is, up to the end of the call.
    Raw,
}

impl ArgumentsState {
    pub(super) fn object(literal: Literal) -> Self {
        Self::Object(literal)
    }

    /// Ends the arguments with the text that no step took.
    pub(super) fn end(self, rest: &str, is_complete: bool, rules: &Rules, out: &mut String) {
        let is_padded = rules.tags().is_some_and(|tags| tags.is_padded);
        match self {
            Self::Object(_) if is_complete => out.push_str("{}"),
            Self::Tags { is_first } if is_complete => {
                out.push_str(if is_first { "{}" } else { "}" });
            }
            Self::Text { .. } => {
                let text = if is_padded { rest.strip_suffix('\n').unwrap_or(rest) } else { rest };
                text.chars().for_each(|c| escape(c, out));
                out.push_str(if is_complete { "\"}" } else { "" });
            }
            Self::Value { kind, .. } if is_complete => {
                write_value(rest, kind, is_padded, out);
                out.push('}');
            }
            Self::Raw => out.push_str(rest),
            _ => {}
        }
    }
}

impl Rules {
    /// Syntax of elements, if arguments are such.
    pub(super) fn tags(&self) -> Option<&Tags> {
        match &self.calls()?.form {
            Form::Named { arguments: Arguments::Tagged(tags), .. } => Some(tags),
            _ => None,
        }
    }
}

impl AnswerParser {
    /// Goes on with arguments.
    pub(super) fn arguments(
        &mut self,
        rest: &str,
        is_end: bool,
        rules: &Rules,
        events: &mut Events,
    ) -> (usize, Step) {
        let index = self.n_calls - 1;
        let mut out = String::new();
        let result = self.arguments_to(rest, is_end, rules, &mut out);
        events.arguments(index, &out);
        result
    }

    fn arguments_to(
        &mut self,
        rest: &str,
        is_end: bool,
        rules: &Rules,
        out: &mut String,
    ) -> (usize, Step) {
        let State::Arguments(state) = &mut self.state else { return (0, Step::More) };
        match state {
            ArgumentsState::Object(literal) => {
                let space = rest.len() - rest.trim_start().len();
                match rest[space..].chars().next() {
                    None => return (space, Step::More),
                    Some('{') => *state = ArgumentsState::Literal(std::mem::take(literal)),
                    Some(_) => {
                        out.push_str("{}");
                        self.state = State::Tail;
                    }
                }
                (space, Step::Next)
            }
            ArgumentsState::Literal(literal) => {
                let (n, progress) = literal.read(rest, is_end, out);
                match progress {
                    Progress::More => return (n, Step::More),
                    Progress::Done => self.state = State::Tail,
                    Progress::Malformed => *state = ArgumentsState::Raw,
                }
                (n, Step::Next)
            }
            ArgumentsState::Tags { is_first } => {
                let Some(tags) = rules.tags() else { return (0, Step::More) };
                let is_first = *is_first;
                let space = rest.len() - rest.trim_start().len();
                let text = &rest[space..];
                let start = tags.start.trim();
                if text.is_empty() || (start.starts_with(text) && !is_end) {
                    return (space, Step::More);
                }
                let matched = match text.strip_prefix(start) {
                    Some(header) => match_any(&tags.headers, header, is_end),
                    None => Match::No,
                };
                match matched {
                    Match::More => (space, Step::More),
                    Match::No => {
                        out.push_str(if is_first { "{}" } else { "}" });
                        self.state = State::Tail;
                        (space, Step::Next)
                    }
                    Match::Yes(header) => {
                        out.push_str(if is_first { "{\"" } else { ", \"" });
                        header.name.chars().for_each(|c| escape(c, out));
                        out.push_str("\": ");
                        let kind = match header.kind {
                            Some("string" | "true") => Kind::Text,
                            Some(_) => Kind::Json,
                            None => rules.kind(&self.name, header.name),
                        };
                        *state = value_start(kind, out);
                        (space + start.len() + header.len, Step::Next)
                    }
                }
            }
            ArgumentsState::Text { is_begun } => {
                let Some(tags) = rules.tags() else { return (0, Step::More) };
                if !*is_begun {
                    *is_begun = true;
                    if tags.is_padded && rest.starts_with('\n') {
                        return (1, Step::Next);
                    }
                }
                let (n, is_ended) = write_text(rest, tags, out);
                if is_ended {
                    *state = ArgumentsState::Tags { is_first: false };
                    return (n, Step::Next);
                }
                (n, Step::More)
            }
            ArgumentsState::Value { kind, searched } => {
                let Some(tags) = rules.tags() else { return (0, Step::More) };
                let end = tags.end.trim_end();
                let from = rest.floor_char_boundary(searched.saturating_sub(end.len()));
                let Some(at) = rest[from..].find(end).map(|at| from + at) else {
                    *searched = rest.len();
                    return (0, Step::More);
                };
                write_value(&rest[..at], *kind, tags.is_padded, out);
                *state = ArgumentsState::Tags { is_first: false };
                (at + end.len(), Step::Next)
            }
            ArgumentsState::Raw => {
                let (end, is_closed) = raw_end(rest, rules);
                out.push_str(&rest[..end]);
                if is_closed {
                    self.state = State::Tail;
                    return (end, Step::Next);
                }
                (end, Step::More)
            }
        }
    }
}

/// Length of the longest proper prefix of `marker` that `text` ends with.
fn overlap(text: &str, marker: &str) -> usize {
    let lengths = marker.char_indices().map(|(n, _)| n).skip(1);
    lengths.filter(|&n| text.ends_with(&marker[..n])).last().unwrap_or(0)
}

/// Writes the value of an element: JSON as it is, Python's notation as JSON, all else as a string.
fn write_value(text: &str, kind: Kind, is_padded: bool, out: &mut String) {
    let inner = match is_padded {
        true => {
            let text = text.strip_prefix('\n').unwrap_or(text);
            text.strip_suffix('\n').unwrap_or(text)
        }
        false => text,
    };
    let value = inner.trim();
    let parsed = serde_json::from_str::<Value>(value).ok();
    match kind {
        // Templates print Python's notation, and models repeat it.
        Kind::TextOrNull if matches!(value, "null" | "None") => {
            out.push_str("null");
            return;
        }
        Kind::TextOrNull => {}
        Kind::Any | Kind::Json | Kind::Text if parsed.is_some() => {
            out.push_str(value);
            return;
        }
        Kind::Json | Kind::Any => {
            let start = out.len();
            let text = format!("{value},");
            let is_compound = value.starts_with(['{', '[']);
            let is_constant = matches!(value, "True" | "False" | "None");
            let mut literal = Literal::default();
            if (is_compound || (is_constant && kind == Kind::Json))
                && matches!(literal.read(&text, true, out), (n, Progress::Done) if n == value.len())
            {
                return;
            }
            out.truncate(start);
        }
        _ => {}
    }
    out.push('"');
    inner.chars().for_each(|c| escape(c, out));
    out.push('"');
}

/// State at the start of a value of this kind.
fn value_start(kind: Kind, out: &mut String) -> ArgumentsState {
    match kind {
        Kind::Text => {
            out.push('"');
            ArgumentsState::Text { is_begun: false }
        }
        kind => ArgumentsState::Value { kind, searched: 0 },
    }
}

/// Writes the text of a value up to its end, if that is there. Returns the bytes read, and whether the value has ended.
fn write_text(rest: &str, tags: &Tags, out: &mut String) -> (usize, bool) {
    let end = tags.end.trim_end();
    if let Some(at) = rest.find(end) {
        let text = &rest[..at];
        let text = if tags.is_padded { text.strip_suffix('\n').unwrap_or(text) } else { text };
        text.chars().for_each(|c| escape(c, out));
        out.push('"');
        return (at + end.len(), true);
    }
    let mut held = rest.len() - overlap(rest, end);
    if tags.is_padded && rest[..held].ends_with('\n') {
        held -= 1;
    }
    rest[..held].chars().for_each(|c| escape(c, out));
    (held, false)
}

/// End of raw arguments, and whether the call ends there.
fn raw_end(rest: &str, rules: &Rules) -> (usize, bool) {
    let Some(calls) = rules.calls() else { return (rest.len(), false) };
    let end_at = |closer: &str| rest.find(closer).unwrap_or(rest.len() - overlap(rest, closer));
    let end = calls.ends().map(end_at).fold(rest.len(), usize::min);
    (end, calls.ends().any(|closer| rest[end..].starts_with(closer)))
}
