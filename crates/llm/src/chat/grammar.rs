//! Grammars of tool calls, in the form that the template writes them.
//!
//! ```text
//! start: "<tool_call>" (NL)? call_0 | call_1 … (NL)? "</tool_call>"
//! call_0: "{\"name\":" … "\"weather\"," … %json {schema} "}"
//! ```

use std::fmt::Write as _;

use serde_json::{Map, Value, json};
use stonechat_sampling::{GrammarStart, Trigger, embedded_schema};
use stonechat_text::Tokenizer;

use super::Tool;
use super::parser::{GEMMA_QUOTE, Kind, kind_of};
use super::syntax::{Arguments, CallSyntax, Form, JsonForm, Layout, Syntax, Tags};
use crate::Error;

/// Terminals of all grammars.
const TERMINALS: &str =
    "NL: /\\n[ \\t]{0,8}/\nSP: / |\\n[ \\t]{0,8}/\nWS: /[ \\n]{1,4}/\nGAP: /[ \\t\\n]{1,24}/\n";
/// Maximum tools whose calls start the grammar without markers.
const MAX_OBJECTS: usize = 120;
/// Keys and identifiers that no schema names.
const WORD: &str = "/[A-Za-z0-9_\\-]{1,64}/";

/// Writer of a grammar.
#[derive(Clone)]
pub(super) struct Writer<'a> {
    syntax: &'a Syntax,
    calls: &'a CallSyntax,
    /// Control tokens in the markers, longest first: a grammar has them by number.
    specials: Vec<(&'a str, u32)>,
    out: String,
}

impl<'a> Writer<'a> {
    pub(super) fn new(syntax: &'a Syntax, calls: &'a CallSyntax, tokenizer: &'a Tokenizer) -> Self {
        let markers = syntax.markers();
        let is_marker = |name: &str| markers.iter().any(|marker| marker.contains(name));
        let specials = tokenizer.specials().filter(|&(id, _)| tokenizer.is_control(id));
        let named = specials.filter(|(_, name)| !name.is_empty() && is_marker(name));
        let mut specials: Vec<(&str, u32)> = named.map(|(id, name)| (name, id)).collect();
        specials.sort_unstable_by_key(|(name, _)| std::cmp::Reverse(name.len()));
        Self { syntax, calls, specials, out: String::from(TERMINALS) }
    }

    /// Lark source of calls of `tools`, one or several (`is_parallel`), or of `content`, see [`content`].
    ///
    /// # Errors
    /// If a schema has an invalid pattern; with the name of its tool.
    pub(super) fn write(
        mut self,
        tools: &[&Tool],
        (is_parallel, is_lazy): (bool, bool),
        content: Option<&str>,
    ) -> Result<String, Error> {
        let mut names = Vec::with_capacity(tools.len());
        for (index, tool) in tools.iter().enumerate() {
            let call = self.call(index, tool)?;
            let _ = writeln!(self.out, "call_{index}: {call}");
            names.push(format!("call_{index}"));
        }
        let _ = writeln!(self.out, "call: {}", names.join(" | "));
        let mut starts = Vec::new();
        if let Some(form) = self.calls.loose().filter(|_| is_lazy) {
            let objects = tools.iter().enumerate().map(|(index, tool)| loose(form, index, tool));
            let _ = writeln!(self.out, "loose: {}", objects.collect::<Vec<_>>().join(" | "));
            let next = if is_parallel { "((GAP)? ((\",\" | \";\") (GAP)?)? loose)*" } else { "" };
            let ends = r#""```" | "</tools>" | "</tool_call>" | "]""#;
            starts.push(format!("loose {next} ((GAP)? ({ends}))?"));
        }
        let repeat = |between: String| match is_parallel {
            true => format!("call ({between} call)*"),
            false => "call".to_owned(),
        };
        let calls = match (self.syntax.layout, &self.calls.form) {
            (Layout::Harmony, Form::Named { .. }) if is_lazy => "call".to_owned(),
            (Layout::Harmony, Form::Named { .. }) => {
                let [start, assistant] = [self.text("<|start|>"), self.text("assistant")];
                let [channel, name] = [self.text("<|channel|>"), self.text("commentary")];
                format!("({start} {assistant})? ({channel} {name})? call")
            }
            (Layout::Recipients, _) if is_lazy => "(\">>>\" call)+".to_owned(),
            (Layout::Recipients, _) => repeat("\">>>\"".to_owned()),
            (_, Form::Json(form)) if form.is_list => {
                format!("\"[\" (NL)? {} (NL)? \"]\"", repeat("\",\" (SP)?".to_owned()))
            }
            _ => repeat(self.text(&self.calls.between)),
        };
        let [start, end] =
            [&self.calls.section[0], &self.calls.section[1]].map(|text| self.text(text));
        // Bare calls may have a marker.
        let space = if is_lazy { "" } else { "(WS)? " };
        // Both forms of a bare call would be ambiguous.
        if starts.is_empty() || !matches!(&self.calls.form, Form::Json(form) if form.is_bare) {
            starts.push(format!("{space}{start} {calls} {end}"));
        }
        starts.extend(content.map(|content| self.framed(content)));
        let _ = writeln!(self.out, "start: {}", starts.join(" | "));
        Ok(self.out)
    }

    /// Lark source of an answer that is content.
    pub(super) fn write_content(mut self, content: &str) -> String {
        let content = self.framed(content);
        let _ = writeln!(self.out, "start: {content}");
        self.out
    }

    /// Content after the header of its message.
    fn framed(&self, content: &str) -> String {
        match self.syntax.layout {
            Layout::Harmony => {
                let [start, channel, constrain, message] =
                    ["<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"]
                        .map(|text| self.text(text));
                format!(
                    "({start} \"assistant\")? {channel} \"final\" (\" \")? ({constrain} \"json\")? {message} {content}"
                )
            }
            Layout::Recipients => format!("\"all\\n\" {content}"),
            Layout::Markers => content.to_owned(),
        }
    }

    /// Text of a marker: strings, and control tokens by number. Line feeds are optional.
    fn text(&self, text: &str) -> String {
        let mut parts: Vec<String> = Vec::new();
        let (mut rest, mut plain) = (text, String::new());
        let flush = |plain: &mut String, parts: &mut Vec<String>| {
            if !plain.is_empty() {
                parts.push(quoted(plain));
                plain.clear();
            }
        };
        while let Some(c) = rest.chars().next() {
            if let Some((name, id)) = self.specials.iter().find(|(name, _)| rest.starts_with(name))
            {
                flush(&mut plain, &mut parts);
                parts.push(format!("<[{id}]>"));
                rest = &rest[name.len()..];
                continue;
            }
            if c == '\n' {
                flush(&mut plain, &mut parts);
                parts.push("(NL)?".to_owned());
            } else {
                plain.push(c);
            }
            rest = &rest[c.len_utf8()..];
        }
        flush(&mut plain, &mut parts);
        match parts.is_empty() {
            true => "\"\"".to_owned(),
            false => parts.join(" "),
        }
    }

    fn call(&mut self, index: usize, tool: &Tool) -> Result<String, Error> {
        let [start, end] = [&self.calls.call[0], &self.calls.call[1]].map(|text| self.text(text));
        let calls = self.calls;
        Ok(match &calls.form {
            Form::Json(form) => {
                let start = if form.is_bare { "\"\"".to_owned() } else { start };
                let end = if form.is_bare { "\"\"".to_owned() } else { end };
                let schema = schema(tool, &tool.parameters)?;
                let _ = writeln!(self.out, "arguments_{index}: %json {schema}");
                format!("{start} {} {end}", object(form, index, tool))
            }
            Form::Named { headers, arguments } => {
                let header = match (self.syntax.layout, headers.first()) {
                    (Layout::Harmony, _) => self.harmony(&tool.name),
                    (Layout::Recipients, _) => quoted(&format!("{}\n", tool.name)),
                    (_, Some(header)) => self.header(header, &tool.name),
                    (_, None) => quoted(&tool.name),
                };
                let end = if self.syntax.layout == Layout::Harmony { "\"\"" } else { &end };
                let arguments = match arguments {
                    Arguments::Json => format!("%json {}", schema(tool, &tool.parameters)?),
                    Arguments::Keywords => self.keywords(index, tool)?,
                    Arguments::Gemma => self.gemma(index, tool)?,
                    Arguments::Tagged(tags) => self.tags(index, tags, tool)?,
                };
                format!("{start} {header} {arguments} {end}")
            }
        })
    }

    fn harmony(&self, name: &str) -> String {
        let name = quoted(&format!(" to=functions.{name}"));
        let [channel, constrain, message] =
            ["<|channel|>", "<|constrain|>", "<|message|>"].map(|text| self.text(text));
        format!("{name} ({channel} \"commentary\")? (\" \")? ({constrain})? (\"json\")? {message}")
    }

    /// Header of a pattern, with a name or a key.
    fn header(&self, mut pattern: &str, name: &str) -> String {
        let mut parts = Vec::new();
        while let Some((text, rest)) = pattern.split_once('{') {
            let Some((field, rest)) = rest.split_once('}') else { break };
            parts.push(self.text(text));
            parts.push(match field {
                "name" | "key" => quoted(name),
                "index" | "number" => "/[0-9]{1,6}/".to_owned(),
                "type" => "/string|number|boolean|object|array|null|true|false/".to_owned(),
                _ => WORD.to_owned(),
            });
            pattern = rest;
            // The line feed is the end of the name.
            if let Some(rest) = pattern.strip_prefix('\n') {
                parts.push(quoted("\n"));
                pattern = rest;
            }
        }
        parts.push(self.text(pattern));
        parts.join(" ")
    }

    /// Arguments as elements, in the order of the schema.
    fn tags(&mut self, index: usize, tags: &Tags, tool: &Tool) -> Result<String, Error> {
        let [start, end] = [self.text(&tags.start), self.text(&tags.end)];
        let pad = if tags.is_padded { "\"\\n\"" } else { "\"\"" };
        let has_special = self.specials.iter().any(|(name, _)| tags.end.contains(name));
        let free = if has_special {
            // A string up to a control token cannot have what is before that token.
            format!("/([^<]|<[^\\/])*/ {end}")
        } else {
            let close = format!("{}{}", if tags.is_padded { "\n" } else { "" }, tags.end.trim());
            let _ = writeln!(self.out, "text_{index}[suffix={}]: /(?s:.*)/", quoted(&close));
            format!("text_{index} (NL)?")
        };
        let header = tags.headers.first().map(AsRef::as_ref).unwrap_or("{key}");
        let mut parts = Vec::new();
        for (key, own, is_required) in properties(tool) {
            let value = match (kind_of(&own), choices(&own)) {
                (Kind::Text, Some(choices)) => format!("({choices}) {pad} {end}"),
                (Kind::Json, _) => format!("%json {} {pad} {end}", schema(tool, &own)?),
                _ => free.clone(),
            };
            let element = format!("{start} {} {pad} {value}", self.header(header, key));
            parts.push(if is_required { element } else { format!("({element})?") });
        }
        if parts.is_empty() && is_open(&tool.parameters) {
            let (before, after) = header.split_once("{key}").unwrap_or_default();
            let [before, after] = [self.text(before), self.header(after, "")];
            return Ok(format!("(NL)? ({start} {before} {WORD} {after} {pad} {free})*"));
        }
        Ok(format!("(NL)? {}", parts.join(" ")))
    }

    /// Python's keyword arguments up to `)`; JSON's values are Python's, or understood.
    fn keywords(&mut self, index: usize, tool: &Tool) -> Result<String, Error> {
        let mut items = Vec::new();
        for (key, own, is_required) in properties(tool) {
            let value = format!("{} %json {}", quoted(&format!("{key}=")), schema(tool, &own)?);
            items.push((value, is_required));
        }
        if items.is_empty() && is_open(&tool.parameters) {
            let item = format!("{WORD} \"=\" %json {{}}");
            return Ok(format!("({item} (\",\" (SP)? {item})*)? \")\""));
        }
        Ok(format!("{} \")\"", self.list(index, &items, "\", \"")))
    }

    /// Gemma's object.
    fn gemma(&mut self, index: usize, tool: &Tool) -> Result<String, Error> {
        let quote = self.text(GEMMA_QUOTE);
        let text = match self.specials.iter().any(|(name, _)| *name == GEMMA_QUOTE) {
            true => format!("{quote} /(?s:.*)/ {quote}"),
            false => {
                let end = quoted(GEMMA_QUOTE);
                let _ = writeln!(self.out, "quoted_{index}[suffix={end}]: /(?s:.*)/");
                format!("{quote} quoted_{index}")
            }
        };
        let (value, pair) = (format!("value_{index}"), format!("pair_{index}"));
        let _ = writeln!(self.out, "{pair}: {WORD} \":\" {value}");
        let scalar = r#"%json {"type": ["number", "boolean", "null"]}"#;
        let _ = writeln!(
            self.out,
            "{value}: {text} | {scalar} | \"{{\" ({pair} (\",\" {pair})*)? \"}}\" | \"[\" ({value} (\",\" {value})*)? \"]\""
        );
        let items: Vec<(String, bool)> = properties(tool)
            .map(|(key, own, is_required)| {
                let value = match (kind_of(&own), choices(&own)) {
                    (Kind::Text, Some(choices)) => format!("{quote} ({choices}) {quote}"),
                    (Kind::Text, None) => text.clone(),
                    _ => value.clone(),
                };
                (format!("{} {value}", quoted(&format!("{key}:"))), is_required)
            })
            .collect();
        if items.is_empty() && is_open(&tool.parameters) {
            return Ok(format!("\"{{\" ({pair} (\",\" {pair})*)? \"}}\""));
        }
        Ok(format!("\"{{\" {} \"}}\"", self.list(index, &items, "\",\"")))
    }

    /// Items in order, some of them optional, with separators between them.
    fn list(&mut self, index: usize, items: &[(String, bool)], separator: &str) -> String {
        for (at, (item, is_required)) in items.iter().enumerate().rev() {
            let next = |state: &str| match at + 1 < items.len() {
                true => format!("list_{index}_{}_{state}", at + 1),
                false => "\"\"".to_owned(),
            };
            for (state, before) in [("first", "\"\""), ("later", separator)] {
                let with = format!("{before} {item} {}", next("later"));
                let without =
                    if *is_required { String::new() } else { format!(" | {}", next(state)) };
                let _ = writeln!(self.out, "list_{index}_{at}_{state}: {with}{without}");
            }
        }
        if items.is_empty() { "\"\"".to_owned() } else { format!("list_{index}_0_first") }
    }
}

/// Lark of the JSON of a schema.
///
/// # Errors
/// If the text is no JSON, or has an invalid pattern.
pub(super) fn content(schema: &str) -> Result<String, Error> {
    let schema = serde_json::from_str(schema).map_err(|error| Error::Option {
        option: "JSON schema",
        expected: "JSON".to_owned(),
        got: error.to_string(),
    })?;
    Ok(format!("%json {}", embedded_schema(schema)?))
}

/// Start of a grammar: `None` if there is nothing that starts it.
pub(super) fn start(syntax: &Syntax, calls: &CallSyntax, tools: &[&Tool]) -> Option<GrammarStart> {
    let mut triggers = Vec::new();
    if let Some(form) = calls.loose().filter(|_| tools.len() <= MAX_OBJECTS) {
        triggers.extend(tools.iter().map(|tool| Trigger::Object {
            text: format!("{{\"{}\":{}", form.name, json!(tool.name)),
        }));
    }
    match (syntax.layout, &calls.form) {
        (Layout::Harmony, Form::Named { .. }) => triggers.push(Trigger::text(" to=functions.")),
        (Layout::Recipients, _) => triggers.push(Trigger::text(">>>")),
        (_, Form::Json(form)) if form.is_bare => {
            // Content may be JSON too; only strict schemas take that risk.
            if tools.iter().any(|tool| tool.is_strict) {
                let object = format!("{{\"{}\":", form.name);
                triggers.push(Trigger::text(object));
            }
        }
        _ => triggers.push(Trigger::text(calls.opening())),
    }
    (!triggers.is_empty()).then_some(GrammarStart::After(triggers))
}

/// Call as an object without markers, over one line or several.
fn loose(form: &JsonForm, index: usize, tool: &Tool) -> String {
    let word = |text: &str| quoted(&json!(text).to_string());
    let [name, value, arguments] = [form.name.as_ref(), &tool.name, &form.arguments].map(word);
    format!(
        "\"{{\" (GAP)? {name} (GAP)? \":\" (GAP)? {value} (GAP)? \",\" (GAP)? {arguments} (GAP)? \":\" (GAP)? arguments_{index} (GAP)? \"}}\""
    )
}

/// Call as an object.
fn object(form: &JsonForm, index: usize, tool: &Tool) -> String {
    let key = |key: &str| quoted(&format!("\"{key}\":"));
    let name = quoted(&format!("{}", json!(tool.name)));
    if form.is_keyed {
        let name = quoted(&format!("{}:", json!(tool.name)));
        return format!("\"{{\" {name} (SP)? arguments_{index} \"}}\"");
    }
    let (mut before, mut after) = (String::new(), String::new());
    if form.name == "tool_name" {
        let id = quoted("\"tool_call_id\":");
        before = format!("({id} (SP)? \"\\\"\" /[0-9]{{1,6}}/ \"\\\",\" (SP)?)? ");
    } else if form.is_list {
        after = format!(" (\",\" (SP)? {} (SP)? \"\\\"\" {WORD} \"\\\"\")?", key("id"));
    }
    format!(
        "\"{{\" (NL)? {before}{} (SP)? {name} \",\" (SP)? {} (SP)? arguments_{index}{after} (NL)? \"}}\"",
        key(&form.name),
        key(&form.arguments),
    )
}

/// Properties of a tool with their schemas, and whether they are required.
fn properties(tool: &Tool) -> impl Iterator<Item = (&str, Value, bool)> {
    let schema = &tool.parameters;
    let required = schema["required"].as_array();
    let properties = schema["properties"].as_object().into_iter().flatten();
    properties.map(move |(key, own)| {
        let is_required = required.is_some_and(|keys| keys.iter().any(|it| it == key.as_str()));
        (key.as_str(), own.clone(), is_required)
    })
}

/// Strings that a schema lists, as alternatives.
fn choices(schema: &Value) -> Option<String> {
    let values = schema["enum"].as_array()?.iter().filter_map(Value::as_str).map(quoted);
    Some(values.collect::<Vec<_>>().join(" | ")).filter(|choices| !choices.is_empty())
}

/// Whether a schema without properties allows any.
fn is_open(schema: &Value) -> bool {
    schema["additionalProperties"] != false
        && schema["properties"].as_object().is_none_or(Map::is_empty)
        && schema["properties"].is_null()
}

/// Schema of the arguments of a tool, or of one of them.
fn schema(tool: &Tool, own: &Value) -> Result<String, Error> {
    let mut schema = own.clone();
    let is_whole = std::ptr::eq(own, &raw const tool.parameters);
    match &mut schema {
        Value::Null => schema = json!({"type": "object"}),
        Value::Object(members) if is_whole => {
            members.entry("type").or_insert_with(|| "object".into());
        }
        Value::Object(members) => {
            for name in ["$defs", "definitions"] {
                if let Some(definitions) = tool.parameters.get(name) {
                    members.entry(name).or_insert_with(|| definitions.clone());
                }
            }
        }
        _ => {}
    }
    let schema = embedded_schema(schema).map_err(|error| Error::ToolSchema {
        tool: tool.name.clone(),
        problem: error.to_string(),
    })?;
    Ok(schema.to_string())
}

/// String of Lark, which has JSON's escapes.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
