//! Answers as real templates print them, parsed back.
//!
//! The templates are those of `cargo xtask templates`, which downloads them; without them the test is skipped.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use stonechat_text::Conversation;

use super::families::answers;
use super::formats::model;
use super::writers::Answer;
use super::{parse_with, tools};
use crate::chat::{AnswerOptions, ChatMessage, ToolCall, ToolChoice};
use crate::{ChatFormat, ModelInfo};

const QUESTION: &str = "QuestionProbe";
const CONTENT: &str = "ContentProbe";

/// Templates whose printed answers are not what their models write, or have a form that is not parsed.
const KNOWN: [&str; 6] = [
    // Nested elements; messages to recipients.
    "MiniMax-M3",
    "muse-glimmer",
    // Strings in character data.
    "openbmb-MiniCPM5-1B",
    // Strings with quotes that are not escaped.
    "LFM2.5-8B-A1B",
    // Calls in a turn of their own after content.
    "NVIDIA-Nemotron-Nano-v2",
    // Content before a call becomes reasoning.
    "openai-gpt-oss-120b",
];
/// Ends of a turn after calls that differ from the end after content.
const TURN_ENDS: [&str; 9] = [
    "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
    "<|END_OF_TURN_TOKEN|>",
    "<｜Assistant｜>",
    "<｜end▁of▁sentence｜>",
    "<｜hy_eos:opensource｜>",
    "<|eom_id|>",
    "<|tool_response>",
    "<|end|>",
    "</s>",
];

/// Folder of the downloaded templates.
fn folder() -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/templates");
    let unpacked = std::fs::read_dir(target).ok()?.filter_map(Result::ok).map(|entry| entry.path());
    let mut folders = unpacked.map(|path| path.join("vendor/llama.cpp/models/templates"));
    folders.find(|folder| folder.is_dir())
}

struct Template<'a> {
    model: &'a ModelInfo,
    format: ChatFormat,
    /// Prompt of a question.
    prompt: String,
    /// End of a turn.
    end: String,
}

fn message(answer: &Answer) -> Value {
    let mut message = json!({"role": "assistant", "content": answer.content});
    if !answer.reasoning.is_empty() {
        message["reasoning_content"] = json!(answer.reasoning);
    }
    let call = |(index, (name, arguments)): (usize, &(&str, Value))| {
        let function = json!({"name": name, "arguments": arguments});
        json!({"id": format!("call0000{index}"), "type": "function", "function": function})
    };
    if !answer.calls.is_empty() {
        message["tool_calls"] = answer.calls.iter().enumerate().map(call).collect();
    }
    message
}

fn conversation(answer: Option<Value>) -> Conversation {
    let definitions = tools().into_iter().map(|tool| {
        let function =
            json!({"name": tool.name, "description": "A tool", "parameters": tool.parameters});
        json!({"type": "function", "function": function})
    });
    let question = json!({"role": "user", "content": QUESTION});
    Conversation {
        add_generation_prompt: answer.is_none(),
        messages: std::iter::once(question).chain(answer).collect(),
        tools: Some(definitions.collect()),
        now: Some(0),
        variables: Map::from_iter([("enable_thinking".to_owned(), json!(true))]),
        ..Conversation::default()
    }
}

impl<'a> Template<'a> {
    fn new(model: &'a ModelInfo, source: &str) -> Option<Self> {
        let format = ChatFormat::new(model, Some(source)).ok()?;
        let prompt = format.prompt(conversation(None)).ok()?.text();
        let plain = Answer { content: CONTENT, ..Answer::default() };
        let plain = format.prompt(conversation(Some(message(&plain)))).ok()?.text();
        let (_, end) = plain.rsplit_once(CONTENT)?;
        let end = end.trim().to_owned();
        Some(Self { model, format, prompt, end })
    }

    /// Whether an answer is parsed back from what the template prints; `None` if it prints only a part.
    fn check(&self, answer: &Answer) -> Option<Result<(), String>> {
        let full = self.format.prompt(conversation(Some(message(answer)))).ok()?.text();
        let (choice, list) = (ToolChoice::Auto, tools());
        let options = AnswerOptions {
            tools: &list,
            choice: &choice,
            parallel: true,
            splits_reasoning: true,
            content: None,
        };
        let prompt = self.format.prompt(conversation(None)).ok()?;
        let format = self.format.answer_format(self.model, &prompt, &options).unwrap();
        let (start, end, is_open) = match format.reasoning {
            Some(markers) => (markers.start, markers.end, markers.is_open),
            None => Default::default(),
        };
        let text = self.answer_text(&full, [&start, &end], is_open)?;
        let mut words = answer.calls.iter().map(|(name, _)| *name).collect::<Vec<_>>();
        words.extend([answer.reasoning, answer.content]);
        if words.iter().any(|word| !text.contains(word)) {
            return None;
        }
        let got = parse_with(format.parser, &[&text], true);
        Some(if is_same(&got, answer) { Ok(()) } else { Err(format!("{text:?}: {got:?}")) })
    }

    /// The answer alone, as the model writes it after the prompt.
    fn answer_text(&self, full: &str, [start, end]: [&str; 2], is_open: bool) -> Option<String> {
        let asked = self.prompt.rfind(QUESTION)? + QUESTION.len();
        let (head, printed) =
            (&self.prompt[asked..], &full[full.rfind(QUESTION)? + QUESTION.len()..]);
        let same = head.bytes().zip(printed.bytes()).take_while(|(a, b)| a == b).count();
        let mut cut = head.floor_char_boundary(same);
        // Reasoning that the prompt opens or closes is part of what the template prints.
        let markers = [start, end].into_iter().filter(|marker| !marker.is_empty());
        if same < head.len() {
            for at in markers.filter_map(|marker| head.rfind(marker)) {
                cut = cut.min(at);
            }
        }
        let mut text = printed[cut..].trim_start();
        if is_open {
            text = text.strip_prefix(start).unwrap_or(text);
        }
        for turn_end in [self.end.as_str()].iter().chain(&TURN_ENDS).filter(|end| !end.is_empty()) {
            text = text.trim_end();
            text = text.strip_suffix(turn_end).unwrap_or(text).trim_end();
        }
        let is_closed = is_open && !text.contains(end);
        Some(format!("{}{text}", if is_closed { end } else { "" }))
    }
}

fn is_same(got: &ChatMessage, answer: &Answer) -> bool {
    let is_call = |(call, (name, arguments)): (&ToolCall, &(&str, Value))| {
        let parsed = serde_json::from_str::<Value>(&call.arguments).ok();
        call.name == *name && parsed.as_ref() == Some(arguments)
    };
    got.content.trim() == answer.content
        && got.reasoning.trim() == answer.reasoning
        && got.tool_calls.len() == answer.calls.len()
        && got.tool_calls.iter().zip(&answer.calls).all(is_call)
}

#[test]
fn what_real_templates_print_is_parsed_back() {
    let Some(folder) = folder() else {
        eprintln!("skipped: `cargo xtask templates` downloads the templates");
        return;
    };
    let model = model();
    let (mut n_templates, mut n_answers, mut failures) = (0, 0, Vec::new());
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    for path in entries.filter(|path| path.extension().is_some_and(|it| it == "jinja")) {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let source = std::fs::read_to_string(&path).unwrap();
        let Some(template) = Template::new(&model, &source) else { continue };
        let (mut right, mut wrong) = (0, Vec::new());
        for answer in answers() {
            match template.check(&answer) {
                None => {}
                Some(Ok(())) => right += 1,
                Some(Err(error)) => wrong.push(format!("{name}, {}: {error}", answer.name)),
            }
        }
        println!("{name:56} {right:2} right, {} wrong", wrong.len());
        n_answers += right;
        n_templates += usize::from(wrong.is_empty() && right >= 6);
        if !KNOWN.contains(&name.as_str()) {
            failures.extend(wrong);
        }
    }
    println!("{n_templates} templates with at least 6 answers, {n_answers} answers");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(n_templates >= 20, "{n_templates} templates");
}
