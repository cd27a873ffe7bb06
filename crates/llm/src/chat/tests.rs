//! Answers of many families, whole, cut anywhere, cut off, malformed.

mod complaints;
mod cuts;
mod families;
#[cfg(feature = "grammar")]
mod formats;
#[cfg(feature = "grammar")]
mod grammar;
mod malformed;
#[cfg(feature = "grammar")]
mod real;
mod writers;

use std::sync::Arc;

use serde_json::{Value, json};

use super::families::of_source;
use super::syntax::Syntax;
use super::{AnswerParser, ChatMessage, Tool};

/// Tools of all tests.
fn tools() -> Vec<Tool> {
    let tool = |name: &str, properties: Value| Tool {
        name: name.to_owned(),
        parameters: json!({"type": "object", "properties": properties}),
        is_strict: false,
    };
    vec![
        tool(
            "get_weather",
            json!({
                "city": {"type": "string"}, "days": {"type": "integer"}, "options": {"type": "object"},
                "list": {"type": "array"}, "scale": {"type": "number"}, "is_hot": {"type": "boolean"},
                "none": {"type": "null"}, "code": {"type": "string"}, "maybe": {"type": ["string", "null"]},
            }),
        ),
        tool("set-alarm", json!({})),
    ]
}

/// Syntax of a template with these words.
fn syntax(words: &str) -> Arc<Syntax> {
    Arc::new(of_source(words))
}

fn parser(words: &str) -> AnswerParser {
    AnswerParser::new(&syntax(words), &tools(), true, false)
}

fn parse_with(mut parser: AnswerParser, pieces: &[&str], is_complete: bool) -> ChatMessage {
    let mut events = Vec::new();
    for piece in pieces {
        events.extend(parser.push(piece));
    }
    events.extend(parser.finish(is_complete));
    events.into_iter().collect()
}

/// Parses a complete answer; whole and by characters it is the same.
#[track_caller]
fn parse(words: &str, text: &str) -> ChatMessage {
    let whole = parse_with(parser(words), &[text], true);
    let mut buffer = [0; 4];
    let mut parser = parser(words);
    let mut events = Vec::new();
    for c in text.chars() {
        events.extend(parser.push(c.encode_utf8(&mut buffer)));
    }
    events.extend(parser.finish(true));
    assert_eq!(events.into_iter().collect::<ChatMessage>(), whole, "{text:?} in characters");
    whole
}

/// Words of templates of some families.
const HERMES: &str = "<tool_call> </tool_call> <think> </think>";
const LLAMA: &str = "<|start_header_id|> \"parameters\" <|python_tag|>";
const QWEN_CODER: &str = "<tool_call> <function= <parameter= <think> </think>";
const HARMONY: &str = "<|return|> <|message|> <|channel|>";
