//! Format of the answers of one conversation: parser, tokens to show, grammar of tool calls.

use std::sync::Arc;

use serde_json::json;
use stonechat_sampling::{CompiledGrammar, GrammarSource, GrammarStart};
use stonechat_text::MarkedText;

use super::grammar::{self, Writer};
use super::parser::AnswerParser;
use super::syntax::{CallSyntax, Syntax};
use super::{Tool, ToolChoice};
use crate::{ChatFormat, Error, ModelInfo};

/// Parsing and constraints of the answer to one conversation.
#[derive(Debug)]
#[non_exhaustive]
pub struct AnswerFormat {
    /// Parser of the answer.
    pub parser: AnswerParser,
    /// Special tokens whose names must be in the generated text, for the parser, such as `<tool_call>`.
    pub visible_special: Vec<u32>,
    /// Tokens that end the answer though the vocabulary does not say so, such as `<|call|>` of gpt-oss.
    pub end_tokens: Vec<u32>,
    /// Grammar of tool calls, if the choice or a strict schema needs one.
    pub grammar: Option<ToolGrammar>,
    /// Markers of reasoning, if the template has it.
    pub reasoning: Option<ReasoningMarkers>,
}

/// Grammar of tool calls. It does not see reasoning.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ToolGrammar {
    /// The grammar.
    pub compiled: Arc<CompiledGrammar>,
    /// Start of the grammar: at once if the answer must call a tool, else where calls begin.
    pub start: GrammarStart,
}

/// Markers of reasoning.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReasoningMarkers {
    /// Start of reasoning.
    pub start: String,
    /// End of reasoning.
    pub end: String,
    /// Whether the prompt ends inside reasoning.
    pub is_open: bool,
}

/// Options of [`ChatFormat::answer_format`].
#[derive(Debug, Clone, Copy)]
pub struct AnswerOptions<'a> {
    /// Tools of the conversation.
    pub tools: &'a [Tool],
    /// Tools that the answer may or must call.
    pub choice: &'a ToolChoice,
    /// Whether the answer may have several calls.
    pub parallel: bool,
    /// Whether reasoning is a part of its own; otherwise it is content, with its markers.
    pub splits_reasoning: bool,
}

impl ChatFormat {
    /// Format of the answer to `prompt`, a prompt of this format.
    ///
    /// # Errors
    /// [`Error::ToolSchema`] if the schema of a tool that must be called, or of a strict one, cannot be a grammar;
    /// [`Error::Option`] if the choice names no tool.
    pub fn answer_format(
        &self,
        model: &ModelInfo,
        prompt: &MarkedText,
        options: &AnswerOptions<'_>,
    ) -> Result<AnswerFormat, Error> {
        let syntax = self.syntax();
        let tools = if *options.choice == ToolChoice::None { &[][..] } else { options.tools };
        let is_open = self.ends_in_reasoning(prompt);
        let parser = AnswerParser::new(syntax, tools, options.splits_reasoning, is_open);
        let tokenizer = model.tokenizer();
        let markers = syntax.markers();
        let is_marker =
            |text: &str| text.len() > 1 && markers.iter().any(|marker| marker.contains(text));
        let specials = tokenizer.specials();
        let visible_special = specials.filter(|(_, text)| is_marker(text)).map(|(id, _)| id);
        let ends = syntax.ends.iter().filter_map(|text| tokenizer.token_id(text));
        Ok(AnswerFormat {
            parser,
            visible_special: visible_special.collect(),
            end_tokens: ends.filter(|&id| !tokenizer.is_end_of_generation(id)).collect(),
            grammar: tool_grammar(model, syntax, options)?,
            reasoning: reasoning_markers(syntax, is_open),
        })
    }

    /// Whether a prompt ends inside reasoning.
    fn ends_in_reasoning(&self, prompt: &MarkedText) -> bool {
        let Some([start, end]) = &self.syntax().reasoning else { return false };
        let text = prompt.with_markers();
        if text.trim_end().ends_with(start.trim()) {
            return true;
        }
        // The answer goes on with an assistant message that has begun to reason.
        let head = self.answer_head();
        let Some(at) = text.rfind(head).filter(|_| !head.is_empty()) else { return false };
        let tail = &text[at + head.len()..];
        match (tail.rfind(start.trim()), tail.rfind(end.trim())) {
            (Some(start), Some(end)) => start > end,
            (start, _) => start.is_some(),
        }
    }
}

fn reasoning_markers(syntax: &Arc<Syntax>, is_open: bool) -> Option<ReasoningMarkers> {
    let [start, end] = syntax.reasoning.as_ref()?;
    Some(ReasoningMarkers { start: start.to_string(), end: end.to_string(), is_open })
}

/// Grammar of the calls that the options allow.
fn tool_grammar(
    model: &ModelInfo,
    syntax: &Syntax,
    options: &AnswerOptions<'_>,
) -> Result<Option<ToolGrammar>, Error> {
    let Some(calls) = &syntax.calls else { return Ok(None) };
    let is_allowed = |tool: &&Tool| match options.choice {
        ToolChoice::Function(name) => tool.name == *name,
        ToolChoice::None => false,
        ToolChoice::Auto | ToolChoice::Required => true,
    };
    let tools: Vec<&Tool> = options.tools.iter().filter(is_allowed).collect();
    let start = match options.choice {
        ToolChoice::None => return Ok(None),
        ToolChoice::Auto if tools.is_empty() => return Ok(None),
        ToolChoice::Auto => {
            let is_strict = tools.iter().any(|tool| tool.is_strict);
            let Some(start) = grammar::start(syntax, calls, is_strict) else { return Ok(None) };
            start
        }
        ToolChoice::Required | ToolChoice::Function(_) => GrammarStart::Immediately,
    };
    if tools.is_empty() {
        let names: Vec<&str> = options.tools.iter().map(|tool| tool.name.as_str()).collect();
        let expected = format!("one of the tools ({})", names.join(", "));
        let got = match options.choice {
            ToolChoice::Function(name) => name.clone(),
            _ => "no tools".to_owned(),
        };
        return Err(Error::Option { option: "tool_choice", expected, got });
    }
    let is_parallel = options.parallel && !matches!(options.choice, ToolChoice::Function(_));
    let task = GrammarTask { model, syntax, calls, is_parallel, start };
    task.compile(&tools)
}

/// Grammar to compile.
struct GrammarTask<'a> {
    model: &'a ModelInfo,
    syntax: &'a Syntax,
    calls: &'a CallSyntax,
    is_parallel: bool,
    start: GrammarStart,
}

impl GrammarTask<'_> {
    /// Compiles the grammar. If a schema cannot be a grammar, a call that no schema must constrain has any object.
    fn compile(self, tools: &[&Tool]) -> Result<Option<ToolGrammar>, Error> {
        let error = match self.try_compile(tools) {
            Ok(grammar) => return Ok(Some(grammar)),
            Err(error) => error,
        };
        let is_required = self.start == GrammarStart::Immediately;
        let mut replaced = Vec::with_capacity(tools.len());
        for &tool in tools {
            match self.try_compile(&[tool]) {
                Ok(_) => replaced.push(tool.clone()),
                Err(error) if is_required || tool.is_strict => {
                    return Err(match error {
                        error @ Error::ToolSchema { .. } => error,
                        other => {
                            let problem = other.to_string();
                            Error::ToolSchema { tool: tool.name.clone(), problem }
                        }
                    });
                }
                Err(_) => {
                    let parameters = json!({"type": "object"});
                    replaced.push(Tool { parameters, ..tool.clone() });
                }
            }
        }
        if is_required {
            return Err(error);
        }
        let replaced: Vec<&Tool> = replaced.iter().collect();
        match self.try_compile(&replaced) {
            Ok(grammar) => Ok(Some(grammar)),
            Err(error) if tools.iter().any(|tool| tool.is_strict) => Err(error),
            // The parser understands calls without a grammar, too.
            Err(_) => Ok(None),
        }
    }

    fn try_compile(&self, tools: &[&Tool]) -> Result<ToolGrammar, Error> {
        let writer = Writer::new(self.syntax, self.calls, self.model.tokenizer());
        let is_lazy = self.start != GrammarStart::Immediately;
        let source = GrammarSource::Lark(writer.write(tools, self.is_parallel, is_lazy)?);
        let compiled = Arc::new(self.model.compile_grammar(&source)?);
        Ok(ToolGrammar { compiled, start: self.start.clone() })
    }
}
