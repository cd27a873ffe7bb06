//! Syntax of tool calls of an unknown template, from the calls that it prints.
//!
//! ```text
//! <tool_call>\n{"name": "first_probe", "arguments": {"key_a": "ValueA", "key_b": "ValueB"}}\n</tool_call>\n<tool_call>\n{…
//! '---------- head ----'           '----- middle -----'   '-value'                      '-------- separator -------'
//! ```
//!
//! The words of the probes are known, so all text between them is markers. llama.cpp's auto-parser compares renderings of
//! different inputs for the same purpose.

use serde_json::{Value, json};
use stonechat_text::{ChatTemplate, Conversation};

use super::syntax::{Arguments, CallSyntax, Form, JsonForm, Tags, Text};

const NAMES: [&str; 2] = ["first_probe", "second_probe"];
const KEYS: [&str; 3] = ["key_a", "key_b", "key_c"];
const VALUES: [&str; 3] = ["ValueA", "ValueB", "ValueC"];
const CONTENT: &str = "ContentProbe";

/// Text between the words of a probe.
struct Parts<'a> {
    /// Before the first name.
    head: &'a str,
    /// From the name to the first key.
    middle: &'a str,
    /// From a key to its value.
    value: &'a str,
    /// From a value to the next key.
    comma: &'a str,
    /// From the last value of a call to the next name.
    separator: &'a str,
    /// After the last value, without the end of the turn.
    tail: &'a str,
}

/// Syntax of the tool calls that a template prints; `None` if it prints none, or in no form that is known.
pub(crate) fn calls(template: &ChatTemplate, reasoning_end: Option<&str>) -> Option<CallSyntax> {
    if !template.capabilities().supports_tool_calls {
        return None;
    }
    let call = |index: usize, arguments: Value| {
        let function = json!({"name": NAMES[index], "arguments": arguments});
        json!({"id": format!("call0000{index}"), "type": "function", "function": function})
    };
    let first = call(0, json!({KEYS[0]: VALUES[0], KEYS[1]: VALUES[1]}));
    let second = call(1, json!({KEYS[2]: VALUES[2]}));
    let answer = |content: &str, calls: Option<Value>| {
        let mut answer = json!({"role": "assistant", "content": content});
        if let Some(calls) = calls {
            answer["tool_calls"] = calls;
        }
        let conversation = Conversation {
            messages: vec![json!({"role": "user", "content": "Hello"}), answer],
            tools: Some(tools()),
            now: Some(0),
            ..Conversation::default()
        };
        template.render(&conversation).ok()
    };
    let plain = answer(CONTENT, None)?;
    let text = answer("", Some(json!([first, second])))?;
    Parts::of(&text, &plain, reasoning_end)?.calls()
}

fn tools() -> Value {
    let tool = |name: &str| {
        let parameters = json!({"type": "object", "properties": {}});
        let function = json!({"name": name, "description": "A tool", "parameters": parameters});
        json!({"type": "function", "function": function})
    };
    json!([tool(NAMES[0]), tool(NAMES[1])])
}

impl<'a> Parts<'a> {
    fn of(text: &'a str, plain: &'a str, reasoning_end: Option<&str>) -> Option<Self> {
        let [a, b, c] = [text.rfind(VALUES[0])?, text.rfind(VALUES[1])?, text.rfind(VALUES[2])?];
        let before = |end: usize, word: &str| text[..end].rfind(word);
        let (first, second) = (before(a, NAMES[0])?, before(c, NAMES[1])?);
        let keys = [before(a, KEYS[0])?, before(b, KEYS[1])?, before(c, KEYS[2])?];
        let between = |from: usize, word: &str, to: usize| text.get(from + word.len()..to);
        let (common, end) = plain.split_once(CONTENT)?;
        let same = text.bytes().zip(common.bytes()).take_while(|(a, b)| a == b).count();
        let mut head = text.get(same..first)?;
        if let Some((_, rest)) = reasoning_end.and_then(|end| head.rsplit_once(end)) {
            head = rest;
        }
        let tail = text.get(c + VALUES[2].len()..)?;
        Some(Self {
            head,
            middle: between(first, NAMES[0], keys[0])?,
            value: between(keys[0], KEYS[0], a)?,
            comma: between(a, VALUES[0], keys[1])?,
            separator: between(b, VALUES[1], second)?,
            tail: tail.strip_suffix(end).unwrap_or(tail),
        })
    }

    fn calls(&self) -> Option<CallSyntax> {
        let is_json = self.value.starts_with('"')
            && self.value.trim_end_matches('"').trim_end().ends_with(':');
        match (is_json, self.head.ends_with('"')) {
            (true, true) => self.objects(),
            (true, false) => self.named_objects(),
            (false, _) => self.elements(),
        }
    }

    /// `{"name": NAME, "arguments": {…}}`.
    fn objects(&self) -> Option<CallSyntax> {
        let (opening, key) = self.head.rsplit_once('{')?;
        let name = quoted(key).unwrap_or("name");
        let arguments = self.middle.strip_prefix('"').and_then(quoted);
        let is_list = opening.trim_end().ends_with('[');
        let marker = opening.trim_end().trim_end_matches('[');
        let (gap, _) = self.separator.rsplit_once('{')?;
        let gap = after_brackets(gap);
        let tail = after_brackets(self.tail).trim_start().trim_start_matches(']');
        let form = JsonForm {
            name: name.to_owned().into(),
            arguments: arguments.unwrap_or("arguments").to_owned().into(),
            is_list,
            is_bare: marker.trim().is_empty(),
            is_keyed: arguments.is_none(),
        };
        let (mut section, mut call) = (none(), none());
        let mut between = gap.to_owned();
        match gap.rfind(marker.trim()).filter(|_| !is_list && !form.is_bare) {
            Some(at) => {
                let end = gap[..at].trim_end();
                call = [opening.to_owned().into(), end.to_owned().into()];
                between = gap[end.len()..at].to_owned();
            }
            None => section = [marker.to_owned().into(), tail.trim_end().to_owned().into()],
        }
        Some(CallSyntax { section, call, between: between.into(), form: Form::Json(form) })
    }

    /// A name in markers, then an object.
    fn named_objects(&self) -> Option<CallSyntax> {
        let header = self.middle.strip_suffix("{\"")?;
        let (separator, tail) =
            (self.separator.strip_prefix("\"}")?, self.tail.strip_prefix("\"}")?);
        self.named(header, separator, tail, Arguments::Json)
    }

    /// A name in markers, then an element for each argument.
    fn elements(&self) -> Option<CallSyntax> {
        let start = common_marker(self.middle, self.comma)?;
        let end = self.comma.strip_suffix(start)?;
        let header = self.middle.strip_suffix(start)?;
        let (separator, tail) = (self.separator.strip_prefix(end), self.tail.strip_prefix(end));
        let is_padded = self.value.ends_with('\n') && end.starts_with('\n');
        let tags = Tags {
            start: start.trim_start().to_owned().into(),
            headers: vec![format!("{{key}}{}", self.value.trim_end()).into()],
            end: end.trim_start().to_owned().into(),
            is_padded,
        };
        if tags.end.trim().is_empty() {
            return None;
        }
        self.named(header, separator?, tail?, Arguments::Tagged(tags))
    }

    fn named(
        &self,
        header: &str,
        separator: &str,
        tail: &str,
        arguments: Arguments,
    ) -> Option<CallSyntax> {
        let start = common_marker(self.head, separator)?;
        let section = self.head.strip_suffix(start)?.trim_start();
        let gap = separator.strip_suffix(start)?;
        // Markers of a section that each call has are between two calls.
        let (end, between) = match gap.split_once(section.trim()) {
            Some((before, _)) if !section.trim().is_empty() => (before, gap),
            _ => (gap.trim_end(), &gap[gap.trim_end().len()..]),
        };
        let section_end = tail.strip_prefix(end.trim_end()).unwrap_or_default();
        let (end, between) = match section_end.trim() {
            "" => (end, between),
            section_end => {
                let at = end.find(section_end).unwrap_or(end.len());
                (&end[..at], &gap[at.min(gap.len())..])
            }
        };
        Some(CallSyntax {
            section: [section.to_owned().into(), section_end.trim_end().to_owned().into()],
            call: [start.trim_start().to_owned().into(), end.trim_end().to_owned().into()],
            between: between.to_owned().into(),
            form: Form::Named { headers: vec![format!("{{name}}{header}").into()], arguments },
        })
    }
}

fn none() -> [Text; 2] {
    ["".into(), "".into()]
}

/// First word in quotes.
fn quoted(text: &str) -> Option<&str> {
    text.split('"').nth(1).filter(|word| !word.is_empty())
}

/// Text after the end of a string and of the objects around it.
fn after_brackets(text: &str) -> &str {
    text.trim_start_matches('"').trim_start_matches(['}', ' ', '\n']).trim_start_matches('}')
}

/// Longest common end of two texts that begins with a marker.
fn common_marker<'a>(a: &'a str, b: &str) -> Option<&'a str> {
    let same = a.bytes().rev().zip(b.bytes().rev()).take_while(|(a, b)| a == b).count();
    let start = (a.len() - same..a.len()).find(|&at| a.is_char_boundary(at))?;
    let common = &a[start..];
    let at = common.find(['<', '['])?;
    let spaces = common[..at].len() - common[..at].trim_end().len();
    Some(&common[at - spaces..])
}
