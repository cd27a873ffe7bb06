//! Format of the answers of one conversation: parser, tokens to show, grammar of tool calls.

use std::sync::Arc;

use stonechat_sampling::{GrammarSource, GrammarStart};
use stonechat_text::MarkedText;

use super::parser::AnswerParser;
use super::syntax::Syntax;
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

/// Grammar of tool calls.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToolGrammar {
    /// Source of the grammar.
    pub source: GrammarSource,
    /// Start of the grammar in the answer.
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
    /// If a call is required and the schema of a tool cannot be a grammar.
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
            grammar: None,
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
