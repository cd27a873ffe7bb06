//! A call as a JSON object, read member by member: `{"name": NAME, "arguments": {…}}` in any order.

use super::literal::{Literal, Progress};
use crate::chat::syntax::JsonForm;

/// Keys of a name.
const NAMES: [&str; 2] = ["name", "tool_name"];
/// Keys of arguments.
const ARGUMENTS: [&str; 4] = ["arguments", "parameters", "args", "input"];
/// Keys of an identifier.
const IDS: [&str; 3] = ["id", "tool_call_id", "call_id"];
/// Maximum bytes of a key, a name or an identifier.
const MAX_WORD: usize = 512;

/// State of a call.
#[derive(Debug, Clone, Default)]
pub(super) struct JsonCall {
    /// Open objects: the call, and a `function` in it.
    depth: u8,
    expects: Expect,
    literal: Literal,
    /// Name, once it is known.
    pub(super) name: Option<String>,
    /// Identifier, if it came before the name.
    pub(super) id: Option<String>,
    /// Whether the object has arguments.
    pub(super) has_arguments: bool,
    /// Whether it has no marker, so that an object with another key before the name is content.
    is_bare: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Expect {
    #[default]
    Open,
    Key,
    Value(Member),
    /// Rest of a value.
    Literal(Member),
    /// Rest of arguments in a string.
    Text,
    Comma,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Member {
    Name,
    Arguments,
    Id,
    Function,
    Other,
}

/// State of a call after a piece of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JsonStep {
    /// The object goes on.
    More,
    /// The text is no call.
    Malformed,
    /// The name is known.
    Named,
    /// The object is complete.
    Done,
}

impl JsonCall {
    pub(super) fn new(is_bare: bool) -> Self {
        Self { is_bare, ..Self::default() }
    }

    /// Reads `text` and appends the JSON of the arguments to `out`. Returns the number of bytes read.
    pub(super) fn read(
        &mut self,
        text: &str,
        is_end: bool,
        form: &JsonForm,
        out: &mut String,
    ) -> (usize, JsonStep) {
        let mut at = 0;
        loop {
            if !matches!(self.expects, Expect::Text | Expect::Literal(_)) {
                at += text[at..].len() - text[at..].trim_start().len();
            }
            let rest = &text[at..];
            if rest.is_empty() {
                return (at, JsonStep::More);
            }
            let before = (self.expects, self.depth);
            let (n, step) = match self.expects {
                Expect::Open => self.open(rest),
                Expect::Key => self.key(rest, form),
                Expect::Value(member) => self.value(rest, member, is_end),
                Expect::Literal(member) => self.rest(rest, member, is_end, out),
                Expect::Text => self.text(rest, out),
                Expect::Comma => self.comma(rest),
            };
            at += n;
            if step != JsonStep::More {
                return (at, step);
            }
            if n == 0 && (self.expects, self.depth) == before {
                return (at, JsonStep::More);
            }
        }
    }

    fn open(&mut self, rest: &str) -> (usize, JsonStep) {
        if !rest.starts_with('{') {
            return (0, JsonStep::Malformed);
        }
        self.depth += 1;
        self.expects = Expect::Key;
        (1, JsonStep::More)
    }

    fn key(&mut self, rest: &str, form: &JsonForm) -> (usize, JsonStep) {
        if rest.starts_with('}') {
            return self.comma(rest);
        }
        let (key, n) = match word(rest) {
            Word::Yes(key, n) => (key, n),
            Word::More => return (0, JsonStep::More),
            Word::No => return (0, JsonStep::Malformed),
        };
        let after = &rest[n..];
        let colon = n + after.len() - after.trim_start().len();
        match rest[colon..].chars().next() {
            None => return (0, JsonStep::More),
            Some(':') => {}
            Some(_) => return (0, JsonStep::Malformed),
        }
        let member = match key.as_str() {
            _ if form.is_keyed && self.name.is_none() => {
                self.name = Some(key);
                self.expects = Expect::Value(Member::Arguments);
                return (colon + 1, JsonStep::Named);
            }
            key if NAMES.contains(&key) || key == form.name => Member::Name,
            key if ARGUMENTS.contains(&key) || key == form.arguments => Member::Arguments,
            key if IDS.contains(&key) => Member::Id,
            "function" => Member::Function,
            "type" => Member::Other,
            _ if self.is_bare && self.name.is_none() => return (0, JsonStep::Malformed),
            _ => Member::Other,
        };
        self.expects = Expect::Value(member);
        (colon + 1, JsonStep::More)
    }

    /// Begins the value of a member.
    fn value(&mut self, rest: &str, member: Member, is_end: bool) -> (usize, JsonStep) {
        let is_string = rest.starts_with('"');
        match member {
            Member::Name | Member::Id | Member::Function if is_string => {
                let (text, n) = match word(rest) {
                    Word::Yes(text, n) => (text, n),
                    Word::More => return (0, JsonStep::More),
                    Word::No => return (0, JsonStep::Malformed),
                };
                self.expects = Expect::Comma;
                if member == Member::Id {
                    self.id = Some(text);
                } else if self.name.is_none() {
                    self.name = Some(text);
                    return (n, JsonStep::Named);
                }
                (n, JsonStep::More)
            }
            Member::Function if rest.starts_with('{') && self.depth == 1 => self.open(rest),
            Member::Name => (0, JsonStep::Malformed),
            Member::Arguments if !self.has_arguments => {
                if "null".starts_with(rest) && rest.len() < 4 && !is_end {
                    return (0, JsonStep::More);
                }
                if rest.starts_with("null") {
                    self.expects = Expect::Comma;
                    return (4, JsonStep::More);
                }
                self.has_arguments = true;
                self.literal = Literal::default();
                self.expects = if is_string { Expect::Text } else { Expect::Literal(member) };
                (usize::from(is_string), JsonStep::More)
            }
            // A second value of a key is read and dropped.
            _ => {
                self.literal = Literal::default();
                self.expects = Expect::Literal(Member::Other);
                (0, JsonStep::More)
            }
        }
    }

    /// Goes on with a value that is JSON.
    fn rest(
        &mut self,
        rest: &str,
        member: Member,
        is_end: bool,
        out: &mut String,
    ) -> (usize, JsonStep) {
        let mut dropped = String::new();
        let out = if member == Member::Arguments { out } else { &mut dropped };
        let (n, progress) = self.literal.read(rest, is_end, out);
        match progress {
            Progress::More => (n, JsonStep::More),
            Progress::Malformed => (n, JsonStep::Malformed),
            Progress::Done => {
                self.expects = Expect::Comma;
                (n, JsonStep::More)
            }
        }
    }

    /// Goes on with arguments in a string, which are JSON once they are decoded.
    fn text(&mut self, rest: &str, out: &mut String) -> (usize, JsonStep) {
        let run = rest.find(['"', '\\']).unwrap_or(rest.len());
        out.push_str(&rest[..run]);
        let special = &rest[run..];
        if special.starts_with('"') {
            self.expects = Expect::Comma;
            return (run + 1, JsonStep::More);
        }
        match decoded(special) {
            Some((c, n)) => {
                out.push(c);
                (run + n, JsonStep::More)
            }
            None => (run, JsonStep::More),
        }
    }

    fn comma(&mut self, rest: &str) -> (usize, JsonStep) {
        if rest.starts_with(',') {
            self.expects = Expect::Key;
            return (1, JsonStep::More);
        }
        let n = usize::from(rest.starts_with('}'));
        self.depth -= n.min(self.depth.into()) as u8;
        self.expects = Expect::Comma;
        match (&self.name, n, self.depth) {
            (Some(_), 1, 0) => (1, JsonStep::Done),
            (_, 1, 1..) => (1, JsonStep::More),
            // The model has left out a bracket.
            (Some(_), 0, _) => (0, JsonStep::Done),
            _ => (0, JsonStep::Malformed),
        }
    }
}

enum Word {
    More,
    No,
    Yes(String, usize),
}

/// String of JSON that `text` begins with, and its bytes.
fn word(text: &str) -> Word {
    if !text.starts_with('"') {
        return Word::No;
    }
    let mut is_escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            b'"' if !is_escaped => {
                return match serde_json::from_str(&text[..=at]) {
                    Ok(word) => Word::Yes(word, at + 1),
                    Err(_) => Word::No,
                };
            }
            b'\n' => return Word::No,
            byte => is_escaped = byte == b'\\' && !is_escaped,
        }
        if at > MAX_WORD {
            return Word::No;
        }
    }
    Word::More
}

/// Character of an escape sequence and its bytes; `None`: more text decides. A lone surrogate is U+FFFD.
fn decoded(text: &str) -> Option<(char, usize)> {
    let escape = text.get(1..)?.chars().next()?;
    let simple = match escape {
        'b' => '\u{8}',
        'f' => '\u{c}',
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'u' => {
            let unit = |at: usize| u32::from_str_radix(text.get(at..at + 4)?, 16).ok();
            let first = unit(2)?;
            if (0xd800..0xdc00).contains(&first) {
                let next = text.get(6..8)?;
                let low = if next == "\\u" { unit(8)? } else { 0 };
                if (0xdc00..0xe000).contains(&low) {
                    let code = 0x10000 + ((first - 0xd800) << 10) + (low - 0xdc00);
                    return Some((char::from_u32(code).unwrap_or('\u{fffd}'), 12));
                }
            }
            return Some((char::from_u32(first).unwrap_or('\u{fffd}'), 6));
        }
        other => other,
    };
    Some((simple, 1 + escape.len_utf8()))
}
