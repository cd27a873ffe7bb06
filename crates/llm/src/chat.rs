//! Answers of a chat: from the text of the model to reasoning, content and tool calls, while it is generated.
//!
//! | module | holds |
//! |---|---|
//! | `answer` | [`AnswerFormat`]: parser, special tokens and grammar of one answer |
//! | `syntax` | markers of reasoning and tool calls |
//! | `families`, `detect` | the syntax of a template, by its words or by what it prints |
//! | `hermes` | tools in prompts of templates that have none |
//! | `grammar` | grammars of tool calls |
//! | `event` | [`ChatEvent`], parts of an answer; [`ChatMessage`], the parts collected |
//! | `parser` | [`AnswerParser`]: text to events |
//! | `tools` | [`Tool`], [`ToolChoice`] |

mod answer;
mod apply;
pub(crate) mod detect;
mod event;
pub(crate) mod families;
mod grammar;
pub(crate) mod hermes;
mod parser;
pub(crate) mod syntax;
#[cfg(test)]
mod tests;
mod tools;

pub use answer::{AnswerFormat, AnswerGrammar, AnswerOptions, ReasoningMarkers};
pub use event::{ChatEvent, ChatMessage, ToolCall};
pub use parser::AnswerParser;
pub use tools::{Tool, ToolChoice};
