//! Parser of answers: text of the model to parts, whole or piece by piece.
//!
//! ```text
//! text       <think>\nHm</think>\n\nI look.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>
//! state      Text (reasoning)    Text      Opening                           Json            Tail
//! parts      Reasoning "Hm"      Content   (held back)  ToolCall "f"         Arguments       (dropped)
//! ```
//!
//! One machine for all formats, directed by [`Syntax`]. Text is held back only while it may be a marker, white space before
//! one, or the start of a call up to its name. A start that turns out to be none becomes content, byte for byte.

mod arguments;
mod events;
mod json_call;
mod literal;
mod messages;
pub(crate) mod pattern;
mod rules;
mod text;

use std::sync::Arc;

use crate::chat::syntax::{Arguments, CallSyntax, Form, Layout, Syntax};
use crate::chat::{ChatEvent, Tool};
use arguments::ArgumentsState;
use events::Events;
use json_call::{JsonCall, JsonStep};
use literal::Literal;
use pattern::Match;
use rules::Rules;
pub(crate) use rules::{Kind, kind_of};
use text::TextState;

/// Quote of strings in Gemma's arguments.
pub(crate) const GEMMA_QUOTE: &str = "<|\"|>";
/// Special tokens of the messages of gpt-oss.
pub(crate) const HARMONY_MARKERS: [&str; 7] = [
    "<|channel|>",
    "<|message|>",
    "<|start|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|constrain|>",
];
/// Maximum bytes of white space that is held back before a marker.
const MAX_SPACE: usize = 64;

/// Parser of one answer. A clone parses another answer from the same point on. The default one parses content only.
#[derive(Debug, Clone, Default)]
pub struct AnswerParser {
    rules: Arc<Rules>,
    /// Text that is not certain.
    buffer: String,
    state: State,
    /// Calls so far.
    n_calls: usize,
    /// Name of the last call.
    name: String,
    /// Whether the last call is in a section or a list, so that the next one has no marker of its own.
    is_in_section: bool,
    /// Whether a message came before, in formats that have several.
    has_message: bool,
}

#[derive(Debug, Clone)]
enum State {
    Text(TextState),
    /// Before the content of a message.
    Header,
    /// Possible start of a call.
    Opening(Opening),
    /// Call as JSON, after its name.
    Json(Box<JsonCall>),
    /// Arguments after a header.
    Arguments(ArgumentsState),
    /// After a call.
    Tail,
}

impl Default for State {
    fn default() -> Self {
        Self::Text(TextState::START)
    }
}

/// Possible start of a call. All of its text is kept.
#[derive(Debug, Clone)]
struct Opening {
    /// State to go back to.
    back: TextState,
    /// Bytes of white space before the marker, and of the marker.
    space: usize,
    marker: usize,
    /// Whether it is another call of a section.
    is_next: bool,
    json: Option<OpeningJson>,
}

#[derive(Debug, Clone)]
struct OpeningJson {
    call: Box<JsonCall>,
    is_in_section: bool,
    /// Bytes that were read.
    at: usize,
    /// Arguments before the name.
    arguments: String,
}

/// Whether a step has made progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Next,
    /// More text is needed.
    More,
}

impl AnswerParser {
    /// Parser of the answers in one syntax. Without tools, calls are content. `is_reasoning`: the prompt ends inside
    /// reasoning.
    pub(crate) fn new(
        syntax: &Arc<Syntax>,
        tools: &[Tool],
        splits_reasoning: bool,
        is_reasoning: bool,
    ) -> Self {
        let rules = Rules::new(syntax, tools.to_vec(), splits_reasoning);
        let state = match syntax.layout {
            Layout::Harmony | Layout::Recipients => State::Header,
            Layout::Markers if is_reasoning && splits_reasoning => {
                State::Text(TextState::REASONING)
            }
            Layout::Markers => State::default(),
        };
        Self { rules: Arc::new(rules), state, ..Self::default() }
    }

    /// Appends generated text, which may be cut anywhere, and returns the parts that are certain.
    pub fn push(&mut self, text: &str) -> Vec<ChatEvent> {
        self.buffer.push_str(text);
        let mut events = Events::default();
        self.steps(false, &mut events);
        events.into_list()
    }

    /// Parts that were held back. `is_complete`: the model has ended the answer itself, so that a call without its end
    /// marker is complete.
    pub fn finish(&mut self, is_complete: bool) -> Vec<ChatEvent> {
        let mut events = Events::default();
        self.steps(true, &mut events);
        let rest = std::mem::take(&mut self.buffer);
        self.end(&rest, is_complete, &mut events);
        events.into_list()
    }

    fn steps(&mut self, is_end: bool, events: &mut Events) {
        let mut buffer = std::mem::take(&mut self.buffer);
        let rules = Arc::clone(&self.rules);
        let mut at = 0;
        while at < buffer.len() {
            let rest = &buffer[at..];
            let (n, step) = match &mut self.state {
                State::Text(_) => self.text(rest, &rules, events),
                State::Header => self.header(rest, is_end, &rules, events),
                State::Opening(_) => self.opening(rest, is_end, &rules, events),
                State::Json(_) => self.json(rest, is_end, &rules, events),
                State::Arguments(_) => self.arguments(rest, is_end, &rules, events),
                State::Tail => self.tail(rest, is_end, &rules),
            };
            at += n;
            if step == Step::More {
                break;
            }
        }
        buffer.drain(..at);
        self.buffer = buffer;
    }

    fn emit(&self, is_reasoning: bool, text: &str, events: &mut Events) {
        match is_reasoning && self.rules.splits_reasoning {
            true => events.reasoning(text),
            false => events.content(text),
        }
    }

    /// Begins a call whose name is certain.
    fn announce(&mut self, name: String, id: Option<String>, events: &mut Events) {
        events.call(self.n_calls, name.clone(), id);
        self.n_calls += 1;
        self.name = name;
    }

    /// Goes on with what may be a call: markers, then a header or the name in an object.
    fn opening(
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
                    opening.json =
                        match calls.skip_markers(&rest[opening.space..], opening.is_next, is_end) {
                            Skip::More => return (0, Step::More),
                            Skip::No => return self.give_up(rest, events),
                            Skip::Yes { at, is_in_section } => Some(OpeningJson {
                                call: Box::default(),
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
                let is_known = calls.is_bare();
                let Some(mut json) = opening.json.take() else { return (0, Step::More) };
                let name = json.call.name.clone().unwrap_or_default();
                if !rules.is_name(&name, is_known) {
                    return self.give_up(rest, events);
                }
                let id = json.call.id.take();
                self.announce(name, id, events);
                events.arguments(self.n_calls - 1, &json.arguments);
                self.is_in_section = json.is_in_section;
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

    /// Goes on with a call that is a JSON object.
    fn json(
        &mut self,
        rest: &str,
        is_end: bool,
        rules: &Rules,
        events: &mut Events,
    ) -> (usize, Step) {
        let (State::Json(call), Some(Form::Json(form))) =
            (&mut self.state, rules.calls().map(|calls| &calls.form))
        else {
            return (0, Step::More);
        };
        let mut out = String::new();
        let (n, step) = call.read(rest, is_end, form, &mut out);
        let has_arguments = call.has_arguments;
        let index = self.n_calls - 1;
        events.arguments(index, &out);
        match step {
            JsonStep::More => return (n, Step::More),
            JsonStep::Named => {}
            JsonStep::Malformed => self.state = State::Arguments(ArgumentsState::Raw),
            JsonStep::Done => {
                if !has_arguments {
                    events.arguments(index, "{}");
                }
                self.state = State::Tail;
            }
        }
        (n, Step::Next)
    }

    /// Text after a call: end markers, which are dropped, the next call, or content.
    fn tail(&mut self, rest: &str, is_end: bool, rules: &Rules) -> (usize, Step) {
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
        let is_cut = calls.closers().any(|(marker, _)| marker != text && marker.starts_with(text));
        if is_cut && !is_end {
            return (space, Step::More);
        }
        let found = calls.closers().filter(|(marker, _)| text.starts_with(marker));
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
            match calls.skip_markers(text, true, is_end) {
                Skip::More => return (space, Step::More),
                Skip::No => {}
                Skip::Yes { .. } => {
                    // In a section calls have no section marker, and need none.
                    self.state = State::Opening(Opening {
                        back: TextState::AFTER_CALL,
                        space: 0,
                        marker: text.chars().next().map_or(0, char::len_utf8),
                        is_next: true,
                        json: None,
                    });
                    return (space, Step::Next);
                }
            }
        }
        self.state = State::Text(TextState::AFTER_CALL);
        (space, Step::Next)
    }

    fn begin_arguments(&mut self, arguments: &Arguments, events: &mut Events) {
        let mut out = String::new();
        self.state = State::Arguments(match arguments {
            Arguments::Json => ArgumentsState::object(Literal::default()),
            Arguments::Gemma => ArgumentsState::object(Literal::gemma()),
            Arguments::Keywords => ArgumentsState::Literal(Literal::keywords(&mut out)),
            Arguments::Tagged(_) => ArgumentsState::Tags { is_first: true },
        });
        events.arguments(self.n_calls - 1, &out);
    }

    /// Ends the answer with the text that no step took.
    fn end(&mut self, rest: &str, is_complete: bool, events: &mut Events) {
        let state = std::mem::replace(&mut self.state, State::Text(TextState::START));
        match state {
            State::Text(state) if state.is_reasoning => self.emit(true, rest.trim_end(), events),
            State::Text(_) => events.content(rest),
            State::Opening(opening) => self.emit(opening.back.is_reasoning, rest, events),
            State::Json(call) => {
                if is_complete && !call.has_arguments {
                    events.arguments(self.n_calls - 1, "{}");
                }
            }
            State::Arguments(state) => {
                let mut out = String::new();
                state.end(rest, is_complete, &self.rules, &mut out);
                events.arguments(self.n_calls - 1, &out);
            }
            State::Header | State::Tail => {}
        }
    }
}

/// Markers before the name of a call.
enum Skip {
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
    fn ends(&self) -> impl Iterator<Item = &str> {
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
