//! Rules of one conversation: the syntax, the tools, the markers to look for.

use std::sync::Arc;

use serde_json::Value;

use super::messages::RECIPIENT;
use super::{HARMONY_MARKERS, loose};
use crate::chat::Tool;
use crate::chat::syntax::{CallSyntax, Form, JsonForm, Layout, Syntax, Text};

/// Maximum bytes of the name of a tool.
const MAX_NAME: usize = 256;

/// Rules of one conversation.
#[derive(Debug, Clone, Default)]
pub(super) struct Rules {
    pub(super) syntax: Arc<Syntax>,
    /// Tools; empty: calls are content.
    pub(super) tools: Vec<Tool>,
    /// Whether reasoning is a part of its own.
    pub(super) splits_reasoning: bool,
    /// Markers in content, and in reasoning.
    markers: [Vec<(Text, Found)>; 2],
    /// First bytes of the markers.
    firsts: [Vec<u8>; 2],
}

/// Meaning of a marker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// Start of reasoning.
    Reasoning,
    /// End of reasoning.
    Content,
    /// No part of content.
    Wrapper,
    /// Start of tool calls.
    Calls,
    /// Start of a call without the markers of the template.
    Loose,
    /// Start or end of a message.
    Message,
}

/// Search for markers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Search {
    /// Marker at an offset, with its length.
    At(usize, usize, Found),
    /// None before this offset, where one may begin.
    Until(usize),
}

/// Type of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// String.
    Text,
    /// String or null.
    TextOrNull,
    /// No string.
    Json,
    /// JSON, or else a string.
    Any,
}

impl Rules {
    pub(super) fn new(syntax: &Arc<Syntax>, tools: Vec<Tool>, splits_reasoning: bool) -> Self {
        let mut markers: [Vec<(Text, Found)>; 2] = Default::default();
        let mut add = |is_reasoning: bool, text: &str, found: Found| {
            let list = &mut markers[usize::from(is_reasoning)];
            let text = text.trim();
            if !text.is_empty() && list.iter().all(|(known, _)| known != text) {
                list.push((text.to_owned().into(), found));
            }
        };
        let calls = syntax.calls.as_ref().filter(|_| !tools.is_empty());
        if syntax.layout == Layout::Harmony {
            for marker in HARMONY_MARKERS {
                add(false, marker, Found::Message);
                add(true, marker, Found::Message);
            }
        } else {
            if let Some([start, end]) = syntax.reasoning.as_ref().filter(|_| splits_reasoning) {
                add(false, start, Found::Reasoning);
                add(true, end, Found::Content);
            }
            syntax.wrappers.iter().for_each(|text| add(false, text, Found::Wrapper));
        }
        for text in calls.into_iter().flat_map(CallSyntax::openings) {
            let is_special = text.starts_with("<|") || text.starts_with("<｜");
            add(false, text, Found::Calls);
            // No model reasons about these, they are single tokens.
            if is_special {
                add(true, text, Found::Calls);
            }
        }
        if calls.is_some_and(|calls| calls.loose().is_some()) {
            loose::OPENINGS.iter().for_each(|text| add(false, text, Found::Loose));
        }
        if syntax.layout == Layout::Recipients && calls.is_some() {
            add(false, RECIPIENT, Found::Message);
        }
        let firsts = |list: &Vec<(Text, Found)>| {
            let mut firsts: Vec<u8> =
                list.iter().filter_map(|(text, _)| text.bytes().next()).collect();
            firsts.sort_unstable();
            firsts.dedup();
            firsts
        };
        let firsts = [firsts(&markers[0]), firsts(&markers[1])];
        Self { syntax: Arc::clone(syntax), tools, splits_reasoning, markers, firsts }
    }

    /// Syntax of calls, if there are tools.
    pub(super) fn calls(&self) -> Option<&CallSyntax> {
        self.syntax.calls.as_ref().filter(|_| !self.tools.is_empty())
    }

    /// Syntax of calls without a marker, if there are tools.
    pub(super) fn bare(&self) -> Option<&JsonForm> {
        match &self.calls()?.form {
            Form::Json(form) if form.is_bare => Some(form),
            _ => None,
        }
    }

    /// Whether calls may come without a marker of the template.
    pub(super) fn allows_loose(&self) -> bool {
        self.calls().is_some_and(|calls| calls.loose().is_some())
    }

    /// Whether text can be anything but content.
    pub(super) fn has_markers(&self) -> bool {
        !self.markers[0].is_empty() || self.bare().is_some()
    }

    /// Whether a marker of content begins with `text`, or `text` with one.
    pub(super) fn may_be_marker(&self, text: &str) -> bool {
        let is_at_start = |marker: &str| marker.starts_with(text) || text.starts_with(marker);
        self.markers[0].iter().any(|(marker, _)| is_at_start(marker))
    }

    /// First marker in a text. Reasoning starts only at the start of a part.
    pub(super) fn search(&self, text: &str, is_reasoning: bool, is_start: bool) -> Search {
        let (markers, firsts) =
            (&self.markers[usize::from(is_reasoning)], &self.firsts[usize::from(is_reasoning)]);
        let start = text.len() - text.trim_start().len();
        for (at, byte) in text.bytes().enumerate() {
            if !firsts.contains(&byte) {
                continue;
            }
            let rest = &text[at..];
            let is_active = |found: Found| found != Found::Reasoning || (is_start && at == start);
            let mut longest = None;
            for (marker, found) in markers.iter().filter(|&&(_, found)| is_active(found)) {
                if rest.starts_with(marker.as_ref()) {
                    if longest.is_none_or(|(n, _)| n < marker.len()) {
                        longest = Some((marker.len(), *found));
                    }
                } else if marker.starts_with(rest) {
                    return Search::Until(at);
                }
            }
            if let Some((n, found)) = longest {
                return Search::At(at, n, found);
            }
        }
        Search::Until(text.len())
    }

    /// Whether `name` is the name of a tool: one of the conversation, or another word, unless `is_known`.
    pub(super) fn is_name(&self, name: &str, is_known: bool) -> bool {
        let is_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | '/');
        let is_other = !name.is_empty() && name.len() <= MAX_NAME && name.chars().all(is_word);
        self.tools.iter().any(|tool| tool.name == name) || (is_other && !is_known)
    }

    /// Type of an argument of a tool.
    pub(super) fn kind(&self, tool: &str, key: &str) -> Kind {
        let tool = self.tools.iter().find(|known| known.name == tool);
        tool.map_or(Kind::Any, |tool| kind_of(&tool.parameters["properties"][key]))
    }
}

/// Type of the values of a schema.
pub(crate) fn kind_of(schema: &Value) -> Kind {
    let of_type = |name: &str| match name {
        "string" => Kind::Text,
        _ => Kind::Json,
    };
    match &schema["type"] {
        Value::String(name) => return of_type(name),
        Value::Array(names) => {
            let names: Vec<&str> = names.iter().filter_map(Value::as_str).collect();
            let others = names.iter().filter(|name| **name != "string" && **name != "null").count();
            return match (names.contains(&"string"), names.contains(&"null"), others) {
                (true, false, 0) => Kind::Text,
                (true, true, 0) => Kind::TextOrNull,
                (true, ..) => Kind::Any,
                (false, ..) => Kind::Json,
            };
        }
        _ => {}
    }
    if let Value::Array(values) = &schema["enum"]
        && values.iter().all(Value::is_string)
    {
        return Kind::Text;
    }
    Kind::Any
}

impl CallSyntax {
    /// Texts that calls begin with.
    fn openings(&self) -> Vec<&str> {
        let mut openings = vec![self.section[0].trim()];
        // A call within a section may have a marker that is common in text, such as a line feed.
        openings.push(self.call[0].trim());
        openings
    }
}
