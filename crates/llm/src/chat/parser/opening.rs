//! Start and end of a call: markers, the name, what follows.

use super::events::Events;
use super::json_call::{JsonCall, JsonStep};
use super::pattern::{self, Match};
use super::rules::Rules;
use super::text::TextState;
use super::{AnswerParser, State, Step, loose};
use crate::chat::syntax::{Arguments, CallSyntax, Form};

/// Possible start of a call. All of its text is kept.
#[derive(Debug, Clone)]
pub(super) struct Opening {
    /// State to go back to.
    pub(super) back: TextState,
    /// Bytes of white space before the marker, and of the marker.
    pub(super) space: usize,
    pub(super) marker: usize,
    /// Whether it is another call of a section.
    pub(super) is_next: bool,
    /// Whether it has no marker of the template.
    pub(super) is_loose: bool,
    pub(super) json: Option<OpeningJson>,
}

#[derive(Debug, Clone)]
pub(super) struct OpeningJson {
    call: Box<JsonCall>,
    is_in_section: bool,
    /// Bytes that were read.
    at: usize,
    /// Arguments before the name.
    arguments: String,
}

impl AnswerParser {
    /// Goes on with what may be a call: markers, then a header or the name in an object.
    pub(super) fn opening(
        &mut self,
        rest: &str,
        is_end: bool,
        rules: &Rules,
        events: &mut Events,
    ) -> (usize, Step) {
        let (State::Opening(opening), Some(calls)) = (&mut self.state, rules.calls()) else {
            return (0, Step::More);
        };
        let outcome = match &calls.form {
            Form::Json(form) => {
                if opening.json.is_none() {
                    let text = &rest[opening.space..];
                    let skipped = match opening.is_loose {
                        true => loose::object(text, opening.marker, is_end),
                        false => calls.skip_markers(text, opening.is_next, is_end),
                    };
                    opening.json = match skipped {
                        Skip::More => return (0, Step::More),
                        Skip::No => return self.give_up(rest, events),
                        Skip::Yes { at, is_in_section } => Some(OpeningJson {
                            call: Box::new(JsonCall::new(form.is_bare || opening.is_loose)),
                            is_in_section,
                            at: opening.space + at,
                            arguments: String::new(),
                        }),
                    };
                }
                let Some(json) = &mut opening.json else { return (0, Step::More) };
                let (n, step) = json.call.read(&rest[json.at..], is_end, form, &mut json.arguments);
                json.at += n;
                step
            }
            Form::Named { headers, arguments } => {
                let text = &rest[opening.space..];
                let (at, is_in_section) = match calls.skip_markers(text, opening.is_next, is_end) {
                    Skip::More => return (0, Step::More),
                    Skip::No => return self.give_up(rest, events),
                    Skip::Yes { at, is_in_section } => (at, is_in_section),
                };
                return match pattern::match_any(headers, &text[at..], is_end) {
                    Match::More => (0, Step::More),
                    Match::Yes(header) if rules.is_name(header.name, false) => {
                        let n = opening.space + at + header.len;
                        let (name, id) = (header.name.to_owned(), header.id.map(str::to_owned));
                        self.announce(name, id, events);
                        self.is_in_section = is_in_section;
                        self.begin_arguments(arguments, events);
                        (n, Step::Next)
                    }
                    _ => self.give_up(rest, events),
                };
            }
        };
        match outcome {
            JsonStep::More => (0, Step::More),
            JsonStep::Named => {
                let is_known = calls.is_bare() || opening.is_loose;
                let is_loose = opening.is_loose;
                let Some(mut json) = opening.json.take() else { return (0, Step::More) };
                let name = json.call.name.clone().unwrap_or_default();
                if !rules.is_name(&name, is_known) {
                    return self.give_up(rest, events);
                }
                let id = json.call.id.take();
                self.announce(name, id, events);
                events.arguments(self.n_calls - 1, &json.arguments);
                self.is_in_section = json.is_in_section;
                self.is_loose = is_loose;
                self.state = State::Json(json.call);
                (json.at, Step::Next)
            }
            JsonStep::Malformed | JsonStep::Done => self.give_up(rest, events),
        }
    }

    /// Turns the start of what is no call into text.
    fn give_up(&mut self, rest: &str, events: &mut Events) -> (usize, Step) {
        let State::Opening(opening) = &self.state else { return (0, Step::More) };
        let n = opening.space + opening.marker;
        let back = opening.back;
        self.emit(back.is_reasoning, &rest[..n], events);
        self.state = State::Text(back.begun());
        (n, Step::Next)
    }

    /// Text after a call: end markers, which are dropped, the next call, or content.
    pub(super) fn tail(&mut self, rest: &str, is_end: bool, rules: &Rules) -> (usize, Step) {
        let Some(calls) = rules.calls() else {
            self.state = State::Text(TextState::AFTER_CALL);
            return (0, Step::Next);
        };
        let space = rest.len() - rest.trim_start().len();
        let text = &rest[space..];
        if text.is_empty() {
            return (space, Step::More);
        }
        // A longer marker may begin with a shorter one. One that the answer's end cuts off is no content.
        let loose: &[(&str, bool)] = if self.is_loose { &loose::CLOSERS } else { &[] };
        let closers = || calls.closers().chain(loose.iter().copied());
        let is_cut = closers().any(|(marker, _)| marker != text && marker.starts_with(text));
        if is_cut && !is_end {
            return (space, Step::More);
        }
        let found = closers().filter(|(marker, _)| text.starts_with(marker));
        if let Some((marker, ends_section)) = found.max_by_key(|(marker, _)| marker.len()) {
            self.is_in_section &= !ends_section;
            return (space + marker.len(), Step::Next);
        }
        if is_cut {
            return (rest.len(), Step::Next);
        }
        if self.is_in_section {
            let separators: &[char] = match &calls.form {
                Form::Json(_) => &[',', ';'],
                Form::Named { arguments: Arguments::Keywords, .. } => &[','],
                Form::Named { .. } => &[],
            };
            if text.starts_with(separators) {
                return (space + 1, Step::Next);
            }
            let skipped = match self.is_loose && text.starts_with('{') {
                true => Skip::Yes { at: 0, is_in_section: true },
                false => calls.skip_markers(text, true, is_end),
            };
            match skipped {
                Skip::More => return (space, Step::More),
                Skip::No => {}
                Skip::Yes { .. } => {
                    // In a section calls have no section marker, and need none.
                    self.state = State::Opening(Opening {
                        back: TextState::AFTER_CALL,
                        space: 0,
                        marker: text.chars().next().map_or(0, char::len_utf8),
                        is_next: true,
                        is_loose: self.is_loose,
                        json: None,
                    });
                    return (space, Step::Next);
                }
            }
        }
        self.state = State::Text(TextState::AFTER_CALL);
        (space, Step::Next)
    }
}

/// Markers before the name of a call.
pub(super) enum Skip {
    More,
    No,
    /// Offset of the name or the object.
    Yes {
        at: usize,
        is_in_section: bool,
    },
}

impl CallSyntax {
    fn is_bare(&self) -> bool {
        matches!(&self.form, Form::Json(form) if form.is_bare)
    }

    /// Markers after a call, and whether they end the section.
    fn closers(&self) -> impl Iterator<Item = (&str, bool)> {
        let section = self.section[1].trim();
        // A bracket too many, and the end of a list.
        let brackets: &[(&str, bool)] = match &self.form {
            Form::Json(_) => &[("]", true), ("}", false)],
            Form::Named { arguments: Arguments::Keywords, .. } => &[("]", true)],
            Form::Named { .. } => &[],
        };
        let call = self.call[1].split('\n').map(|line| (line.trim(), false));
        let all = call.chain([(section, true)]).chain(brackets.iter().copied());
        all.filter(|(text, _)| !text.is_empty())
    }

    /// Ends of a call or its section.
    pub(super) fn ends(&self) -> impl Iterator<Item = &str> {
        self.closers().map(|(text, _)| text).filter(|text| text.len() > 1)
    }

    /// Skips the markers of a section and a call that `text` begins with. `is_next`: another call of a section.
    fn skip_markers(&self, text: &str, is_next: bool, is_end: bool) -> Skip {
        let mut at = 0;
        let mut is_in_section = is_next || self.is_bare();
        let more = if is_end { Skip::No } else { Skip::More };
        let skip = |at: &mut usize, marker: &str| {
            let space = text[*at..].len() - text[*at..].trim_start().len();
            let rest = &text[*at + space..];
            if rest.starts_with(marker) {
                *at += space + marker.len();
                return Some(true);
            }
            if marker.starts_with(rest) { None } else { Some(false) }
        };
        let [section, call] = [self.section[0].trim(), self.call[0].trim()];
        if !section.is_empty() {
            match skip(&mut at, section) {
                None => return more,
                Some(found) => is_in_section |= found,
            }
        }
        if !call.is_empty() {
            match skip(&mut at, call) {
                None => return more,
                Some(false) if !self.is_bare() => return Skip::No,
                Some(_) => {}
            }
        }
        at += text[at..].len() - text[at..].trim_start().len();
        match &self.form {
            Form::Json(_) => {
                match skip(&mut at, "[") {
                    None => return more,
                    Some(found) => is_in_section |= found,
                }
                at += text[at..].len() - text[at..].trim_start().len();
                match text[at..].chars().next() {
                    None => more,
                    Some('{') => Skip::Yes { at, is_in_section },
                    Some(_) => Skip::No,
                }
            }
            Form::Named { .. } if at == 0 && !is_next => Skip::No,
            Form::Named { .. } => Skip::Yes { at, is_in_section },
        }
    }
}
