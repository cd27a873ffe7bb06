//! Answers of a chat: from the text of the model to reasoning, content and tool calls, while it is generated.
//!
//! | module | holds |
//! |---|---|
//! | `event` | [`ChatEvent`], parts of an answer; [`ChatMessage`], the parts collected |
//! | `parser` | [`AnswerParser`]: text to events |
//! | `tools` | [`Tool`], [`ToolChoice`] |

mod event;
mod parser;
mod tools;

pub use event::{ChatEvent, ChatMessage, ToolCall};
pub use parser::AnswerParser;
pub use tools::{Tool, ToolChoice};
