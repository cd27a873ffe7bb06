//! Format of the answers of one conversation: parser, tokens to show, grammar.

use std::fmt::Write;
use std::sync::Arc;

use serde_json::{Value, json};
use stonechat_sampling::{CompiledGrammar, GrammarSource, GrammarStart};
use stonechat_text::MarkedText;

use super::grammar::{self, Writer};
use super::parser::AnswerParser;
use super::syntax::{Layout, Syntax};
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
    /// Grammar of the answer, if it has one, or the choice or a strict schema needs one of tool calls.
    pub grammar: Option<AnswerGrammar>,
    /// Markers of reasoning, if the template has it.
    pub reasoning: Option<ReasoningMarkers>,
}

/// Grammar of tool calls, of content, or of either. It does not see reasoning.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AnswerGrammar {
    /// The grammar.
    pub compiled: Arc<CompiledGrammar>,
    /// Start of the grammar: at once if the answer must call a tool or its content has a grammar, else where calls begin.
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
    /// Grammar of the content. With tools that may be called it is a JSON schema, and the answer is calls or the JSON.
    pub content: Option<&'a GrammarSource>,
}

impl ChatFormat {
    /// Format of the answer to `prompt`, a prompt of this format.
    ///
    /// # Errors
    /// [`Error::ToolSchema`] if the schema of a tool that must be called, or of a strict one, cannot be a grammar;
    /// [`Error::Option`] if the choice names no tool, or the content has another grammar than a JSON schema beside tools; if
    /// the grammar of the content is invalid.
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
            grammar: answer_grammar(model, syntax, options)?,
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

/// Grammar of the answer: of the calls that the options allow, and of the content.
fn answer_grammar(
    model: &ModelInfo,
    syntax: &Syntax,
    options: &AnswerOptions<'_>,
) -> Result<Option<AnswerGrammar>, Error> {
    let Some(calls) = syntax.calls.as_ref().filter(|_| *options.choice != ToolChoice::None) else {
        return content_grammar(model, syntax, options.content);
    };
    let is_required = *options.choice != ToolChoice::Auto;
    let tools = options.tools.iter().filter(|tool| match options.choice {
        ToolChoice::Function(name) => tool.name == *name,
        _ => true,
    });
    let tools: Vec<&Tool> = tools.collect();
    if tools.is_empty() {
        if !is_required {
            return content_grammar(model, syntax, options.content);
        }
        let names: Vec<&str> = options.tools.iter().map(|tool| tool.name.as_str()).collect();
        let expected = format!("one of the tools ({})", names.join(", "));
        let got = match options.choice {
            ToolChoice::Function(name) => name.clone(),
            _ => "no tools".to_owned(),
        };
        return Err(Error::Option { option: "tool_choice", expected, got });
    }
    // An answer that must call a tool has no content.
    let content = match options.content.filter(|_| !is_required) {
        None => None,
        Some(GrammarSource::JsonSchema(schema)) => Some(grammar::content(schema)?),
        Some(_) => {
            let expected = "none beside tools, but for a JSON schema".to_owned();
            return Err(Error::Option { option: "grammar", expected, got: "one".to_owned() });
        }
    };
    let start = if is_required || content.is_some() {
        GrammarStart::Immediately
    } else {
        let Some(start) = grammar::start(syntax, calls, &tools) else { return Ok(None) };
        start
    };
    let is_parallel = options.parallel && !matches!(options.choice, ToolChoice::Function(_));
    let writer = Writer::new(syntax, calls, model.tokenizer());
    GrammarTask { model, writer, is_required, is_parallel, content, start }.compile(&tools)
}

/// Grammar of an answer without calls.
fn content_grammar(
    model: &ModelInfo,
    syntax: &Syntax,
    content: Option<&GrammarSource>,
) -> Result<Option<AnswerGrammar>, Error> {
    let Some(source) = content else { return Ok(None) };
    let framed = match (source, &syntax.calls) {
        (GrammarSource::JsonSchema(schema), Some(calls)) if syntax.layout != Layout::Markers => {
            let writer = Writer::new(syntax, calls, model.tokenizer());
            Some(GrammarSource::Lark(writer.write_content(&grammar::content(schema)?)))
        }
        _ => None,
    };
    let compiled = Arc::new(model.compile_grammar(framed.as_ref().unwrap_or(source))?);
    Ok(Some(AnswerGrammar { compiled, start: GrammarStart::Immediately }))
}

/// Grammar to compile.
struct GrammarTask<'a> {
    model: &'a ModelInfo,
    writer: Writer<'a>,
    /// Whether the answer must call a tool.
    is_required: bool,
    is_parallel: bool,
    /// Grammar of the content of an answer without calls.
    content: Option<String>,
    start: GrammarStart,
}

impl GrammarTask<'_> {
    /// Compiles the grammar. If a schema cannot be a grammar, a call that no schema must constrain has any object.
    fn compile(self, tools: &[&Tool]) -> Result<Option<AnswerGrammar>, Error> {
        let (is_required, grammars) = (self.is_required, self.model.grammars());
        let may_loosen = !is_required && tools.iter().any(|tool| !tool.is_strict);
        // Most schemas can be grammars: then there is nothing to look up.
        if may_loosen
            && grammars.n_loosened() > 0
            && let Some(compiled) = grammars.loosened(&self.key(tools)?)
        {
            return Ok(Some(AnswerGrammar { compiled, start: self.start }));
        }
        let error = match self.try_compile(tools) {
            Ok(grammar) => return Ok(Some(grammar)),
            Err(error) => error,
        };
        if let Some(content) = &self.content {
            let source = GrammarSource::Lark(self.writer.clone().write_content(content));
            self.model.compile_grammar(&source)?;
        }
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
            Ok(grammar) => {
                if may_loosen {
                    grammars.keep_loosened(self.key(tools)?, Arc::clone(&grammar.compiled));
                }
                Ok(Some(grammar))
            }
            Err(error) if self.content.is_some() || tools.iter().any(|tool| tool.is_strict) => {
                Err(error)
            }
            // The parser understands calls without a grammar, too.
            Err(_) => Ok(None),
        }
    }

    /// Name of the grammar of tools: its source with any arguments, and the schemas.
    fn key(&self, tools: &[&Tool]) -> Result<String, Error> {
        let any = |&&Tool { ref name, is_strict, .. }: &&Tool| {
            let name = name.clone();
            Tool { name, parameters: Value::Null, is_strict }
        };
        let any: Vec<Tool> = tools.iter().map(any).collect();
        let mut key = self.source(&any.iter().collect::<Vec<_>>())?;
        for Tool { parameters, is_strict, .. } in tools {
            let _ = writeln!(key, "{parameters} {is_strict}");
        }
        Ok(key)
    }

    fn source(&self, tools: &[&Tool]) -> Result<String, Error> {
        let is_lazy = self.start != GrammarStart::Immediately;
        let writer = self.writer.clone();
        writer.write(tools, (self.is_parallel, is_lazy), self.content.as_deref())
    }

    fn try_compile(&self, tools: &[&Tool]) -> Result<AnswerGrammar, Error> {
        let source = GrammarSource::Lark(self.source(tools)?);
        let compiled = Arc::new(self.model.compile_grammar(&source)?);
        Ok(AnswerGrammar { compiled, start: self.start.clone() })
    }
}
