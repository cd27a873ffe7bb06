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
mod loose;
mod messages;
mod opening;
pub(crate) mod pattern;
mod rules;
mod text;

use std::sync::Arc;

use crate::chat::syntax::{Arguments, Form, Layout, Syntax};
use crate::chat::{ChatEvent, Tool};
use arguments::ArgumentsState;
use events::Events;
use json_call::{JsonCall, JsonStep};
use literal::Literal;
use opening::Opening;
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
    /// Whether the last call had no marker of its template.
    is_loose: bool,
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

    /// Whether the text so far ends inside reasoning.
    #[must_use]
    pub fn is_reasoning(&self) -> bool {
        matches!(self.state, State::Text(state) if state.is_reasoning)
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
